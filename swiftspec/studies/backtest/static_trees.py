"""Trees of the same shape in every round: SpecInfer's from rank acceptance, Sequoia's from SpecInfer's.

SpecInfer (arXiv 2305.09781) prints how often the token is among the draft's first 1 to 5, and the lengths of trees 1 to
5 wide. Sequoia (arXiv 2402.12374) prints lengths of its own trees and of SpecInfer's for three pairs, two with a 70B
target.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from swiftspec.acceptance.fitting import Fit
from swiftspec.acceptance.model import AcceptanceModel, rank_acceptance, tree_acceptance
from swiftspec.acceptance.records import PublishedAcceptance, Quantity, published_acceptance
from swiftspec.acceptance.synthesis import synthesise
from swiftspec.files.document import ModelRef
from swiftspec.policies.trees.sequoia import static_tree
from swiftspec.studies.backtest.figures import Length, Ranks, acceptance_of, fit_acceptance_model

_SPECINFER_DEPTH, _WIDEST = 8, 5
# Which level of a tree of width w has w children is not printed. Of the first three it is the first, by the lengths;
# with any data set left out the choice is the same (tests/backtest/test_static_trees.py).
SPECINFER_WIDE_LEVEL = 0

_NUM_RANKS = 32  # ranks that Sequoia's trees are made of
_NUM_PROMPTS, _NUM_TOKENS, _SEED = 64, 256, 0
_MODEL = ModelRef(model="synthetic", dtype="bf16")  # a placeholder: tree shapes do not depend on the model


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedTree:
    """A pair's tree of `width` chains of `length` tokens from the root, and Sequoia's static tree for the same pair."""

    target: str
    draft: str
    dataset: str
    width: int
    length: int
    num_nodes: int
    depth: int

    def published(self) -> tuple[float, float]:
        """Published tokens per round of both trees."""
        forked, static = acceptance_of(self.target, self.draft, self.dataset)
        return forked.values[0], static.values[0]


FORKED = (
    *(
        ForkedTree(target=target, draft=draft, dataset="MT-Bench", width=16, length=48, num_nodes=768, depth=18)
        for target, draft in (("llama-3-70b", "llama-3-8b"), ("llama-2-70b", "llama-2-7b"))
    ),
    ForkedTree(target="llama-2-7b", draft="llama-68m", dataset="C4", width=5, length=8, num_nodes=128, depth=10),
)


def specinfer_records() -> Iterator[tuple[PublishedAcceptance, PublishedAcceptance]]:
    """Rank acceptance and lengths of each of SpecInfer's data sets."""
    ranks = [record for record in published_acceptance() if record.quantity is Quantity.CUMULATIVE_RANK_ACCEPTANCE]
    for record in ranks:
        yield (
            record,
            next(
                other
                for other in acceptance_of(record.target, record.draft, record.dataset)
                if other.quantity is Quantity.MEAN_LENGTH
            ),
        )


def specinfer_lengths(ranks: PublishedAcceptance, wide_level: int) -> list[float]:
    """Tokens per round of trees that are 1, 2, ... nodes wide from a level on, fitted to rank acceptance."""
    fit = fit_acceptance_model([Ranks(values=ranks.values, cumulative=True)])
    narrow = [1] * _SPECINFER_DEPTH
    shapes = [[*narrow[:wide_level], width, *narrow[wide_level + 1 :]] for width in range(1, _WIDEST + 1)]
    return [1 + sum(tree_acceptance(fit.acceptance_model, widths)) for widths in shapes]


def forked_fit(tree: ForkedTree) -> Fit:
    """Fit of the acceptance model to the published length of the chains from the root."""
    widths = (tree.width, *[1] * (tree.length - 1))
    return fit_acceptance_model(
        [
            Length(
                value=tree.published()[0],
                of=lambda acceptance_model: 1 + sum(tree_acceptance(acceptance_model, widths)),
            )
        ]
    )


def sequoia_length(acceptance_model: AcceptanceModel, *, num_nodes: int, depth: int) -> float:
    """Tokens per round of the static tree that is best for this acceptance model's rank acceptance."""
    shares = tuple(np.minimum.accumulate(rank_acceptance(acceptance_model, _NUM_RANKS)).tolist())
    nodes = static_tree(shares, num_nodes, depth)
    child = {(node.parent, node.rank): number for number, node in enumerate(nodes)}
    trace = synthesise(
        acceptance_model,
        num_prompts=_NUM_PROMPTS,
        prompt_length=1,
        num_tokens=_NUM_TOKENS,
        seed=_SEED,
        target=_MODEL,
        draft=_MODEL,
        num_candidates=_NUM_RANKS,
    )
    num_rounds = num_tokens = 0
    for prompt in trace.prompts:
        ranks, position = prompt.ranks.tolist(), 0
        while position + depth < len(ranks):
            node, start = 0, position
            while (below := child.get((node, ranks[position]))) is not None:
                node, position = below, position + 1
            position += 1  # the bonus token
            num_tokens += position - start
            num_rounds += 1
    return num_tokens / num_rounds
