"""The drafter, in a vLLM whose sampler is mended, so that the law of its tokens can be tested on CPUs.

`_expand_kernel_impl` of `vllm/utils/cpu_triton_utils.py` in 0.32.0 writes into a copy: the temperatures of a step with
drafts are whatever was in that memory, in every method of drafting.
"""

from importlib import import_module
from typing import Any

from swiftspec.drafter import Drafter

__all__ = ["Drafter"]


def _expand_kernel_impl(
    output: Any, input_val: Any, cu_num_tokens: Any, replace_from: Any, replace_to: Any, MAX_NUM_TOKENS: Any = None
) -> None:
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values = input_val.clone()
    values[values == replace_from] = replace_to
    output.copy_(values.repeat_interleave(counts.long()))


# Whoever has the function already has the other code, too.
import_module("vllm.utils.cpu_triton_utils")._expand_kernel_impl.__code__ = _expand_kernel_impl.__code__
