"""Drafting by a head on the target's hidden states: EAGLE-3 (arXiv 2503.01840) and multi-token prediction layers.

A head reads the target's features where the target has verified a token, and its own hidden states where it drafts on.
What it cached of its own is an approximation: once tokens are accepted they are forwarded again, on the target's
features. So each round begins with one forward of all tokens verified in the last one; its candidates are the tree's
first level. Head and target take turns on the same devices.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import ChainShape, DraftKind, Grid, Layout
from swiftspec.policies.effects import Program, Role, Subprogram
from swiftspec.policies.request import Request
from swiftspec.policies.trees.eagle2 import Eagle2Tree
from swiftspec.policies.trees.level_trees import Layers, layered_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadChain(ChainShape):
    """Draft `num_draft_tokens` one after another, verify them and the root together."""

    name: ClassVar[str] = "head_chain"
    layout: ClassVar[Layout] = Layout.COLOCATED
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.HEAD})
    elastic: ClassVar[bool] = True
    grid: ClassVar[Grid] = {"num_draft_tokens": (1, 2, 3, 4, 5, 6, 7, 8, 10)}

    num_draft_tokens: int = 4

    @property
    def draft_rows(self) -> int:
        return 2 * self.num_draft_tokens  # a whole chain accepted and the bonus token, and all but the last of the next

    @property
    def expand_rows(self) -> int:
        return self.num_draft_tokens + 1

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: layered_rounds(request, self._draft, is_exact=False)}

    def _draft(self, layers: Layers) -> Subprogram[list[int]]:
        chain: list[int] = []
        candidates = yield from layers.start(1)
        while candidates is not None:
            chain.append(layers.add(chain[-1] if chain else 0, candidates.tokens[0], 0.0))
            if len(chain) == self.num_draft_tokens:
                break
            answers = yield from layers.forward(chain[-1:], 1, level=len(chain) + 1)
            candidates = answers[0] if answers else None
        return chain


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTree(Eagle2Tree):
    """Grow EAGLE-2's dynamic tree with a head. Parameters: those of `Eagle2Tree`."""

    name: ClassVar[str] = "head_tree"
    drafts: ClassVar[frozenset[DraftKind]] = frozenset({DraftKind.HEAD})
    is_exact: ClassVar[bool] = False
