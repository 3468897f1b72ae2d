"""The GPU's decoder against the CPU's on the bundled models: logits of whole forwards, and tokens of whole outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swiftspec.devices.local import TREE_SLOTS
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.ops import Ops
from swiftspec.engine.model.gpu.weights import FORMATS
from swiftspec.engine.model.runner import Decoder, ModelRunner
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.spec import model_directory
from swiftspec.policies import POLICIES, DraftKind, Layout, Policy, Request, make_policy
from swiftspec.policies.effects import ForwardKind, Role, Row
from tools.run_alone import run_alone

Record = dict[str, Any]

_PREFIX = 100
_CAPACITY = 512


def decoder_records(
    device: torch.device | str, *, model: str, dtypes: Sequence[str], rows: Sequence[int], ops: Ops | None = None
) -> Iterator[Record]:
    """Compare the logits of a tree forward after a prefix with those of the CPU's decoder in fp32.

    Parameters
    ----------
    device : torch.device or str
        Where the decoder under test runs.
    model : str
        A bundled model, or a directory.
    dtypes, rows : sequences
        One record for each dtype and number of rows: the error |logits - CPU's| / |CPU's|, and the number of rows whose
        most likely token is the same.
    ops : Ops, optional
        The device's own if not given.
    """
    directory = model_directory(model)
    exact: Decoder = CpuDecoder(directory)
    tokens = np.random.default_rng(0).integers(1, exact.spec.vocab_size, _PREFIX + max(rows)).tolist()
    prefix = ForwardBatch(ForwardKind.EXACT, (Chunk(0, tuple(tokens[:_PREFIX])),))
    for dtype in dtypes:
        static: Decoder = GpuDecoder.load(directory, weight_format=FORMATS[dtype], device=device, ops=ops)
        for num_rows in rows:
            # Row 0 is the root. Odd rows are its children, and each even row is the child of the row before it.
            ancestors = [0, *((1 if row % 2 else 1 | 1 << (row - 1)) for row in range(1, num_rows))]
            nodes = zip(tokens[_PREFIX:], ancestors, strict=False)
            tree = tuple(Row(token, _PREFIX + seen.bit_count(), seen) for token, seen in nodes)
            logits = []
            for decoder in (static, exact):
                caches = (decoder.new_cache(_CAPACITY),)
                decoder.forward(prefix, caches)
                result = decoder.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, tree),)), caches)
                logits.append(result.logits[0].double().cpu())
            error = float((logits[0] - logits[1]).norm() / logits[1].norm())
            same = int((logits[0].argmax(-1) == logits[1].argmax(-1)).sum())
            yield {
                "kind": "decoder",
                "shape": f"{model}, {num_rows} rows",
                "dtype": dtype,
                "logits_error": error,
                "same_first_choice": same,
            }


def greedy_records(
    device: torch.device | str, *, dtypes: Sequence[str], num_prompts: int, max_new_tokens: int
) -> Iterator[Record]:
    """Count each policy's greedy outputs that differ from what the target alone generates on the CPU in fp32.

    One record for each dtype and policy, of those that run in one process and on a GPU: not heads. Prompts are random
    tokens.
    """
    exact = _cached(CpuDecoder(model_directory("demo/target")))
    tokens = np.random.default_rng(0).integers(1, exact.vocab_size, (num_prompts, 32)).tolist()
    requests = [Request(prompt=tuple(prompt), max_new_tokens=max_new_tokens) for prompt in tokens]
    alone = make_policy("autoregressive")
    expected = [_output(alone, request, {Role.TARGET: exact}) for request in requests]
    for dtype in dtypes:

        def load(directory: Path, dtype: str = dtype) -> ModelRunner:
            return _cached(GpuDecoder.load(directory, weight_format=FORMATS[dtype], device=device))

        target = load(model_directory("demo/target"))
        for name, policies in _policies_of_one_process():
            draft = model_directory(name)
            models, mask_token = {Role.TARGET: target, Role.DRAFT: load(draft)}, draft_facts(draft).mask_token
            for policy in policies:
                outputs = [_output(policy, replace(request, mask_token=mask_token), models) for request in requests]
                differing = sum(output != own for output, own in zip(outputs, expected, strict=True))
                yield {
                    "kind": "greedy",
                    "policy": policy.name,
                    "dtype": dtype,
                    "prompts": num_prompts,
                    "tokens": sum(map(len, expected)),
                    "differing_outputs": differing,
                }


def _policies_of_one_process() -> Iterator[tuple[str, list[Policy]]]:
    """Bundled drafts that run on a GPU, each with the policies that are tried with it."""
    fitting = [policy for policy in map(make_policy, POLICIES) if _fits(policy)]
    serial = [policy for policy in fitting if DraftKind.SERIAL in policy.drafts]
    yield "demo/draft", serial
    yield "demo/parallel_draft", [p for p in fitting if DraftKind.PARALLEL in p.drafts and p not in serial]


def _fits(policy: Policy) -> bool:
    most_rows = max(policy.draft_rows, policy.target_rows)
    return policy.layout is not Layout.DISAGGREGATED and most_rows <= TREE_SLOTS["cuda"]


def _cached(decoder: Decoder) -> ModelRunner:
    """Runner with one cache for all requests, since a GPU captures its graphs anew for each cache."""
    return ModelRunner(decoder, (decoder.new_cache(_CAPACITY),))


def _output(policy: Policy, request: Request, models: Mapping[Role, ModelRunner]) -> list[int]:
    tokens: list[int] = []
    run_alone(policy.programs(request)[Role.TARGET], models=models, sampler=Sampler(), commit=tokens.extend)
    return tokens
