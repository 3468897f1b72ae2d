"""Drafting methods as published rows state them, and what a simulation needs of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from swiftspec.acceptance.lengths import Drafted
from swiftspec.acceptance.usual import family_of, records_without, usual_rates
from swiftspec.files.reading import parse_foreign_json
from swiftspec.models.quantisation import draft_format
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.under_load.composed_engine import DraftModel
from swiftspec.planner.under_load.decoding import Chains
from swiftspec.planner.under_load.serving_engine import ServingEngine

# Methods by a word of the class or the drafter: the draft as `PlannedModel.draft` knows it, and its usual tokens.
_METHODS: Final = (
    (r"p-eagle", "p-eagle", 7),
    (r"dspark", "dspark", 7),
    (r"dflash", "dflash", 15),
    (r"eagle", "eagle3", 3),
    (r"mtp", "mtp", 3),
    (r"suffix", "suffix", 5),
    (r"n-?gram", "n-gram", 5),
)
_LOOKED_UP: Final = ("suffix", "n-gram")  # without a draft model
_MODEL_TOKENS: Final = 4  # drafted by a separate model, if nobody says how many
_PARALLEL_DRAFTS: Final = ("p-eagle", "dspark", "dflash")  # one forward writes all tokens
# Rounds are drawn text by text, so that a run ends with the texts that drafts know least. Recorded texts of one kind
# have rates that differ by 0.1 (demo-zen4-2-cores, 0.8 in the mean): exponents of a rate with this variation.
_TEXTS: Final = 32
_ROUNDS_OF_A_TEXT: Final = 2048
_TEXT_SHAPE: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """A drafting method.

    draft: None where text is looked up.
    forwards, rows: draft forwards of a round one after another, and rows of its verification.
    survival: share of the rounds that accept at least 1, 2, .. drafted tokens.
    spread: relative standard deviation of tokens per round that nobody stated; 0 if they are stated.
    """

    draft: PlannedModel | None
    forwards: int
    rows: int
    survival: tuple[float, ...]
    spread: float = 0.0

    def model(self, target_quant: str) -> DraftModel | None:
        """The draft beside a target in this format."""
        return None if self.draft is None else self.draft.beside_target(draft_format(target_quant))

    def chains(self, serving: ServingEngine) -> Chains:
        """Drafting in lockstep under an engine, with rounds drawn at the method's acceptance."""
        tokens = _rounds(np.minimum.accumulate(self.survival))
        # The first forward reads what was verified; a parallel draft writes everything in it.
        forward_rows = [self.rows, *[1] * (self.forwards - 1)]
        return serving.chains(forward_rows=forward_rows, rows=self.rows, tokens=tokens)


def _rounds(survival: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Tokens of rounds, the bonus token included, text after text.

    Survival is that of all rounds of texts that are equally long: those that draft badly have more of them.
    """
    rng = np.random.default_rng(0)
    quantiles = np.array([NormalDist().inv_cdf((index + 0.5) / _TEXTS) for index in range(_TEXTS)])
    # Wilson and Hilferty's approximation of a gamma law's quantiles, of mean 1.
    exponents = rng.permutation((1 - 1 / (9 * _TEXT_SHAPE) + quantiles / (3 * _TEXT_SHAPE**0.5)) ** 3)
    low, high = 0.5, 2.0
    for _ in range(40):
        scale = (low + high) / 2
        if np.mean(1 / (1 + (survival[:, None] ** (scale * exponents)).sum(axis=0))) < 1 / (1 + survival.sum()):
            low = scale
        else:
            high = scale
    drawn = rng.random((_TEXTS, _ROUNDS_OF_A_TEXT))
    reached = [drawn < (share ** (scale * exponents))[:, None] for share in survival]
    return 1 + np.sum(reached, axis=0, dtype=np.int64).ravel()


def drafting_of(
    cells: Mapping[str, str],
    target: PlannedModel,
    gaps: list[str],
    *,
    without_source: bool = False,
) -> Drafting | None:
    """The method of a row by its class (`cls`) and drafter (`head`), its length (`K`) and acceptance (`acc`, `pos`).

    None for plain decoding. What the row leaves open is added to the gaps. Acceptance that it does not state is that of
    published records on the row's `dataset`; without_source: but those of the row's own source.
    """
    head, kind = cells.get("head", "").strip(), cells.get("cls", "").strip().lower()
    if not head and (not kind or "plain" in kind):
        return None
    words = f"{kind} {head.lower()}"
    name, usual = next(
        ((draft, tokens) for pattern, draft, tokens in _METHODS if re.search(pattern, words)), (head, _MODEL_TOKENS)
    )
    draft = None if name in _LOOKED_UP else _draft(name, target, gaps)
    drafted = _shape(cells, usual, gaps)
    survival, spread = _survival(cells, drafted), 0.0
    if survival is None:
        gaps.append("acceptance")
        family = family_of(head if "eagle" in name else name, draft.kind if draft else None)
        records = records_without(cells.get("source", "")) if without_source else None
        found = usual_rates(family, cells.get("dataset"), drafted.steps, records=records)
        survival, spread = drafted.survival(found.rates), found.spread
    layout = target.spec.layout if isinstance(target.spec, SparseSpec) else None
    return Drafting(
        draft=None if draft is None else draft.in_layout(layout),
        forwards=1 if name in _PARALLEL_DRAFTS else drafted.steps,
        rows=drafted.rows or drafted.steps + 1,
        survival=survival,
        spread=spread,
    )


def _draft(name: str, target: PlannedModel, gaps: list[str]) -> PlannedModel:
    try:
        return target.draft(name)
    except ValueError:
        gaps.append(f"draft {name}, for which an EAGLE-3 head stands")
        return target.draft("eagle3")


def _shape(cells: Mapping[str, str], usual: int, gaps: list[str]) -> Drafted:
    """A chain, or a tree `steps-top k-rows`."""
    numbers = [int(number) for number in re.findall(r"\d+", cells.get("K", ""))]
    if not numbers:
        gaps.append("number of draft tokens")
        return Drafted(steps=usual)
    if len(numbers) > 2:
        return Drafted(steps=numbers[0], top_k=numbers[1], rows=numbers[2])
    return Drafted(steps=numbers[0])


def _survival(cells: Mapping[str, str], drafted: Drafted) -> tuple[float, ...] | None:
    """As the row states it; None if it does not."""
    if by_position := cells.get("pos", "").strip():
        try:
            rates = [float(rate) for rate in parse_foreign_json(by_position.encode())]
        except (ValueError, TypeError):
            raise ValueError(f"pos is {by_position!r}; expected a list of rates") from None
        if rates and all(0 <= rate <= 1 for rate in rates):
            return tuple(rates)
        raise ValueError(f"pos is {by_position!r}; expected rates of 0 to 1")
    stated = cells.get("acc", "").strip()
    if not stated:
        return None
    try:
        tokens = float(stated)
    except ValueError:
        raise ValueError(f"acc is {stated!r}; expected tokens per round") from None
    if not tokens >= 1:
        raise ValueError(f"acc is {tokens:g}; expected at least 1 token per round")
    # What a tree of these tokens per round accepts at each depth is that of a chain with them.
    return Drafted(steps=drafted.steps).even_survival(tokens)
