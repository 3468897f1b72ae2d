"""EasySpec (NeurIPS 2025, arXiv 2502.02493): faster drafting by running groups of layers on the same input.

Drafting and verification take turns on the target's devices. A round begins with one exact forward over the tokens
that were verified last: their approximate KV was thrown away, and its answer is the draft tree's first level. The
other levels are fuzzy: layers in groups, whose attention blocks get the input of the group's first layer and could
each run on a device of their own. How much acceptance that costs is measured when a trace is recorded, how much time it
saves when a profile is. This engine computes the blocks of a group one after another, so on a CPU it saves none.

The tree is EAGLE-2's.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.eagle2 import Eagle2Tree

__all__ = ["EasySpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EasySpec(Eagle2Tree):
    """Parameters of the fuzzily drafted tree: those of `Eagle2Tree`."""

    name: ClassVar[str] = "easyspec"
    fuzzy: ClassVar[bool] = True

    @property
    def draft_rows(self) -> int:
        return self._most_fresh + self.depth * self.top_k

    @property
    def expand_rows(self) -> int:
        return max(self._most_fresh, self.top_k)

    @property
    def _most_fresh(self) -> int:
        return self.depth + 2  # a whole path accepted, and the bonus token
