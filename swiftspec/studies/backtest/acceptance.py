"""Acceptance: published figures, each predicted from another one of the same pair.

- The asynchronous tree of SwiftSpec's Table 7 from its serial tree (see table7).
- vLLM's chains from the chain of 3 tokens of the same pair and data set.
- SpecInfer's trees from its rank acceptance: how often the token is among the draft's first candidates. On four data
  sets its chains (width 1) are shorter than this acceptance implies, and nothing here explains the difference.
- Sequoia's trees from SpecInfer's for the same pair.

No model is fitted to a row that it predicts, so every error counts as leave-one-out. The prior's spread and correlation
length are the bundled pair's; its other two parameters are means over several pairs, including the row's own.
"""

from collections.abc import Iterator

from swiftspec.acceptance.model import PRIOR, tree_acceptance
from swiftspec.acceptance.records import Quantity, published_acceptance
from swiftspec.studies.backtest.figures import Chain, fit_acceptance_model
from swiftspec.studies.backtest.fitting import chains_of
from swiftspec.studies.backtest.rows import Constant, Row
from swiftspec.studies.backtest.static_trees import (
    FORKED,
    SPECINFER_WIDE_LEVEL,
    forked_fit,
    sequoia_length,
    specinfer_lengths,
    specinfer_records,
)
from swiftspec.studies.backtest.table7 import Reading, predicted_lengths, published_lengths

_row = Row.unfitted
_QUANTITY = "tokens per round"
_KNOWN_CHAIN = 3  # tokens: the shortest chain that shows, for every pair, whether acceptance rises with depth


def acceptance_rows() -> tuple[list[Row], list[Constant]]:
    """Rows and the constants they use; takes a few seconds."""
    rows = [*_asynchronous_trees(), *_chains(), *_trees_of_candidates(), *_static_trees()]
    return rows, _constants()


def _asynchronous_trees() -> Iterator[Row]:
    published = published_lengths("asynchronous")
    for dataset, predicted in predicted_lengths(Reading()).items():
        name = f"qwen2-72b + qwen2-1.5b, {dataset}, asynchronous tree of 8 rows from the serial one"
        yield _row(name, _QUANTITY, published[dataset], predicted, "SwiftSpec, DOI 10.1145/3779212.3790246, Table 7")


def _chains() -> Iterator[Row]:
    vectors = [record for record in published_acceptance() if record.quantity is Quantity.CUMULATIVE_ACCEPTANCE]
    for target, draft, dataset in dict.fromkeys((record.target, record.draft, record.dataset) for record in vectors):
        chains = chains_of(target, draft, dataset)
        known = next(chain for chain in chains if len(chain.values) == _KNOWN_CHAIN)
        # A head that drafts from its own features gets worse with depth; for it, the chain determines that loss.
        fields = ("mean_logit", "depth_loss") if "/" in draft else None
        acceptance_model = fit_acceptance_model([known], fields=fields).acceptance_model
        for chain in chains:
            if chain is not known:
                length = len(chain.values)
                name = f"{target} + {draft}, {dataset}, chain of {length} from that of {_KNOWN_CHAIN}"
                predicted = 1 + sum(tree_acceptance(acceptance_model, (1,) * length))
                yield _row(name, _QUANTITY, _tokens_per_round(chain), predicted, vectors[0].source)


def _tokens_per_round(chain: Chain) -> float:
    return 1 + sum(chain.values)


def _trees_of_candidates() -> Iterator[Row]:
    for ranks, lengths in specinfer_records():
        predicted = specinfer_lengths(ranks, SPECINFER_WIDE_LEVEL)
        for width, (theirs, mine) in enumerate(zip(lengths.values, predicted, strict=True), start=1):
            name = f"{ranks.target} + {ranks.draft}, {ranks.dataset}, tree of width {width} from rank acceptance"
            yield _row(name, _QUANTITY, theirs, mine, ranks.source)


def _static_trees() -> Iterator[Row]:
    for tree in FORKED:
        shape = f"static tree of {tree.num_nodes} nodes from {tree.width} chains"
        name = f"{tree.target} + {tree.draft}, {tree.dataset}, {shape}"
        predicted = sequoia_length(forked_fit(tree).acceptance_model, num_nodes=tree.num_nodes, depth=tree.depth)
        yield _row(name, _QUANTITY, tree.published()[1], predicted, "Sequoia, arXiv 2402.12374")


def _constants() -> list[Constant]:
    reading, forwards = Reading(), "draft forwards"
    demo, vllm, ranks = "the bundled demo trace", "vLLM's chains of three pairs", "SpecInfer's ranks on five data sets"
    facts = (
        ("acceptance model.spread", PRIOR.spread, "nats", demo),
        ("acceptance model.correlation_length", PRIOR.correlation_length, "tokens", demo),
        ("acceptance model.persistence", PRIOR.persistence, "1", f"mean of {demo} and of {vllm}"),
        ("acceptance model.runner_up", PRIOR.runner_up, "1", f"mean of {demo} and of {ranks}"),
        ("table 7: expansions per round", reading.expansions, forwards, "the serial arm's time and the paper's rules"),
        ("table 7: forwards after a miss", reading.miss_expansions, forwards, "the paper's Algorithm 1"),
        (
            "SpecInfer: levels above the wide one",
            SPECINFER_WIDE_LEVEL,
            "levels",
            "SpecInfer's lengths on five data sets; the same with any of them left out",
        ),
    )
    return [Constant(name=name, value=value, unit=unit, fitted_on=fitted_on) for name, value, unit, fitted_on in facts]
