"""Sequoia's static tree (arXiv 2402.12374): the best shape for the acceptance by rank, the same in every round.

If the target's token is a node's b-th candidate with probability p_b, whatever the node, a node is verified with the
product of the p_b on its path, and the sum over a tree's nodes is its tokens per round. So the best tree of a size
takes nodes by falling product (the result of the paper's dynamic programme), down to `depth`. A draft forward fills a
level; the tree's shape is known beforehand, and only the tokens in it change. Rejected nodes are discarded.

The planner fits p to the trace, and chooses size and depth by the cost of rows and levels on the machine.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

from swiftspec.policies.base import Fields, Layout, TreeShape, check_shape, shapes
from swiftspec.policies.effects import Program, Role, Subprogram
from swiftspec.policies.request import Request
from swiftspec.policies.tree import Candidates
from swiftspec.policies.trees.level_trees import Layers, layered_rounds


class StaticNode(NamedTuple):
    """A node of the shape: its parent, its rank among the parent's candidates (from 0), depth and probability."""

    parent: int
    rank: int
    depth: int
    probability: float


@cache
def static_tree(rank_acceptance: tuple[float, ...], num_nodes: int, max_depth: float) -> tuple[StaticNode, ...]:
    """The `num_nodes` most likely nodes, the root (of probability 1) included, by falling probability.

    A child is never more likely than its parent, so the tree is connected. It has fewer nodes if `max_depth` levels
    below the root hold no more.
    """
    nodes: list[StaticNode] = []
    heap = [(-1.0, 0, StaticNode(-1, 0, 0, 1.0))]
    count = 0
    while heap and len(nodes) < num_nodes:
        _, _, node = heapq.heappop(heap)
        number = len(nodes)
        nodes.append(node)
        if node.depth < max_depth:
            for rank, share in enumerate(rank_acceptance):
                count += 1
                child = StaticNode(number, rank, node.depth + 1, node.probability * share)
                heapq.heappush(heap, (-child.probability, count, child))
    return tuple(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequoiaTree(TreeShape):
    """Parameters of the static tree.

    verify_rows: nodes, the root included. depth: levels below the root; each costs a draft forward, the first one the
    root's own. rank_acceptance: probability that the target's token is the draft's first candidate, second, ...; fitted
    by a planner.
    """

    name: ClassVar[str] = "sequoia_tree"
    layout: ClassVar[Layout] = Layout.COLOCATED
    elastic: ClassVar[bool] = True
    profiled: ClassVar[Fields] = {"verify_rows": 6, "depth": 4, "rank_acceptance": (0.6, 0.15, 0.08, 0.04)}

    verify_rows: int = 12
    depth: int = 5
    rank_acceptance: tuple[float, ...] = (0.8, 0.1, 0.04, 0.02)

    def __post_init__(self) -> None:
        check_shape(self, verify_rows=2, depth=1)
        if not self.rank_acceptance or not all(0 <= share <= 1 for share in self.rank_acceptance):
            raise ValueError(f"rank_acceptance is {self.rank_acceptance}; expected probabilities, at least one")

    @property
    def _nodes(self) -> tuple[StaticNode, ...]:
        return static_tree(self.rank_acceptance, self.verify_rows, self.depth)

    @property
    def draft_rows(self) -> int:
        return self.verify_rows + 2

    @property
    def expand_rows(self) -> int:
        inner = {node.parent for node in self._nodes}
        depths = [node.depth for number, node in enumerate(self._nodes) if number in inner]
        return max(2, *map(depths.count, set(depths)))

    @property
    def num_candidates(self) -> int:
        return len(self.rank_acceptance)

    @property
    def serial_forwards(self) -> int:
        return max(node.depth for node in self._nodes)

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: layered_rounds(request, self._draft)}

    @classmethod
    def search_space(cls) -> Iterator["SequoiaTree"]:
        found = shapes(cls, verify_rows=(4, 6, 8, 10, 12, 16, 24), depth=(2, 3, 4, 5, 6, 8, 10))
        return (shape for shape in found if shape.depth < shape.verify_rows)

    def _draft(self, layers: Layers) -> Subprogram[list[int]]:
        static = self._nodes
        placed = {0: 0}  # index in the static tree -> node
        for depth in range(1, self.depth + 1):
            level = [number for number, node in enumerate(static) if node.depth == depth]
            # A place is empty if its parent's is, or if the draft has fewer candidates.
            parents = sorted({static[number].parent for number in level} & placed.keys())
            if not parents:
                break
            num_candidates = 1 + max(static[number].rank for number in level)
            if depth == 1:
                root_candidates = yield from layers.start(num_candidates)
                answers: tuple[Candidates, ...] = (root_candidates,) if root_candidates else ()
            else:
                above = [placed[parent] for parent in parents]
                answers = yield from layers.forward(above, num_candidates, level=depth)
            if not answers:
                break
            candidates = dict(zip(parents, answers, strict=True))
            for number in level:
                node = static[number]
                if node.parent in candidates and node.rank < len(candidates[node.parent].tokens):
                    token = candidates[node.parent].tokens[node.rank]
                    placed[number] = layers.add(placed[node.parent], token, node.probability)
        return sorted(node for node in placed.values() if node)
