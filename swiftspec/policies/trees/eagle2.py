"""EAGLE-2's dynamic tree (arXiv 2406.16858): expand the most confident nodes of a level, then rerank all.

A node's value is the sum of the draft's log-probs on its path. Each of `depth` levels forwards its `top_k` best nodes;
each of those proposes `top_k` children, the `top_k` best of which form the next level. The best of all nodes ever
proposed are verified; they are connected, because value falls along a path. The rest is discarded.

EAGLE's draft is a head on the target's hidden states, see `heads`. Here it is a model of its own; the tree is the same.
`serial_tree` differs: it expands the best leaves of any level, and keeps what survives a round.

EasySpec (NeurIPS 2025, arXiv 2502.02493) grows the same tree faster, by running groups of layers on the same input. A
round begins with one exact forward over the last verified tokens: their approximate KV was discarded, and its
candidates are the tree's first level. The other levels are fuzzy: layers run in groups whose attention blocks get the
input of the group's first layer, so each could run on its own device. The cost in acceptance is measured when a trace
is recorded. This engine computes the blocks of a group one after another, on CPUs and GPUs, so that nothing is saved,
and plans promise nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import Fields, Layout, TreeShape, check_positive, check_shape, shapes
from swiftspec.policies.effects import Program, Role, Subprogram
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Candidates, at_temperature
from swiftspec.policies.trees.level_trees import Layers, layered_rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle2Tree(TreeShape):
    """Parameters of the dynamic tree.

    verify_rows: rows of a verification, the root included (EAGLE-2's total_token).
    top_k: nodes forwarded per level, and children of each.
    depth: levels forwarded below the root.
    draft_temperature: temperature of the draft's probabilities that value a node; a planner fits it to the trace.
    """

    name: ClassVar[str] = "eagle2_tree"
    layout: ClassVar[Layout] = Layout.COLOCATED
    elastic: ClassVar[bool] = True
    is_exact: ClassVar[bool] = True  # what the draft caches of the tokens that it drafts
    profiled: ClassVar[Fields] = {"verify_rows": 8, "top_k": 4, "depth": 4}

    verify_rows: int = 16
    top_k: int = 4
    depth: int = 5
    draft_temperature: float = 1.0

    def __post_init__(self) -> None:
        check_shape(self, verify_rows=2, top_k=1, depth=1)
        check_positive(self, "draft_temperature")

    @property
    def draft_rows(self) -> int:
        return self._most_fresh + self.depth * self.top_k

    @property
    def expand_rows(self) -> int:
        return max(self._most_fresh, self.top_k)

    @property
    def _most_fresh(self) -> int:
        """Most tokens that a round begins with: the last of a whole path accepted and the bonus token, or all of it."""
        return 2 if self.is_exact else self.depth + 2

    @property
    def num_candidates(self) -> int:
        return self.top_k

    @property
    def serial_forwards(self) -> int:
        return 1 + self.depth

    def programs(self, request: Request) -> dict[Role, Program]:
        fuzzy, is_exact = self.fuzzy, self.is_exact
        rounds = layered_rounds(request, self._draft, fuzzy=fuzzy, is_exact=is_exact, are_log_probs=True)
        return {Role.TARGET: rounds}

    @classmethod
    def search_space(cls) -> Iterator["Eagle2Tree"]:
        found = shapes(cls, verify_rows=(6, 8, 12, 16, 24), top_k=(2, 4), depth=(3, 4, 5, 6, 8))
        return (shape for shape in found if shape.verify_rows <= 1 + shape.top_k + shape.depth * shape.top_k)

    def _draft(self, layers: Layers) -> Subprogram[list[int]]:
        first = yield from layers.start(self.top_k)
        if first is None:
            return []
        level = self._propose(layers, 0, first)
        proposed = list(level)
        for number in range(2, self.depth + 2):
            answers = yield from layers.forward(level, self.top_k, level=number)
            if not answers:
                break
            children = [
                child
                for node, candidates in zip(level, answers, strict=True)
                for child in self._propose(layers, node, candidates)
            ]
            proposed += children
            level = sorted(_best(layers, children, self.top_k))
        return _best(layers, proposed, self.verify_rows - 1)

    def _propose(self, layers: Layers, parent: int, candidates: Candidates) -> list[int]:
        above = layers.scores[parent]
        logprobs = at_temperature(candidates.logprobs, self.draft_temperature)
        return [
            layers.add(parent, token, above + logprob)
            for token, logprob in zip(candidates.tokens, logprobs, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EasySpec(Eagle2Tree):
    """Parameters of the fuzzily drafted tree: those of `Eagle2Tree`."""

    name: ClassVar[str] = "easyspec"
    fuzzy: ClassVar[bool] = True
    is_exact: ClassVar[bool] = False


def _best(layers: Layers, nodes: list[int], count: int) -> list[int]:
    """The best of some nodes, best first; ties go to the older, so that a parent comes before its children."""
    return sorted(nodes, key=lambda node: (-layers.scores[node], node))[:count]
