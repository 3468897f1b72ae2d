"""EasySpec (NeurIPS 2025, arXiv 2502.02493): faster drafting by running groups of layers on the same input.

Drafting and verification alternate on the target's devices. A round begins with one exact forward over the last
verified tokens: their approximate KV was discarded, and its candidates are the draft tree's first level. The other
levels are fuzzy: layers run in groups whose attention blocks get the input of the group's first layer, so each could
run on its own device. The cost in acceptance is measured when a trace is recorded. This engine computes the blocks of a
group one after another, on CPUs and GPUs, so that nothing is saved, and plans promise nothing.

The tree is EAGLE-2's.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.trees.eagle2 import Eagle2Tree

__all__ = ["EasySpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EasySpec(Eagle2Tree):
    """Parameters of the fuzzily drafted tree: those of `Eagle2Tree`."""

    name: ClassVar[str] = "easyspec"
    elastic: ClassVar[bool] = True
    fuzzy: ClassVar[bool] = True
    is_exact: ClassVar[bool] = False
