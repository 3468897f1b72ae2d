"""Acceptance by position: records of what was published or counted, each with its key, definition and source.

Acceptance differs by position: DFlash's conditional rate decays along a chain, EAGLE-3's rises, since survivors are
easy text. So a record is a vector. *Unconditional* rate of position i: the share of rounds that accept the first i
draft tokens; *conditional*: of those that accepted the first i - 1. Lengths are tokens per verification, the bonus
token always included, whatever the source counted.

Published figures of draft models are as printed in their sources, each with shape, data set, hardware and source. A
model has its registered name if there is one, otherwise the source's. Figures are facts; one source
(tomasruizt/vllm-scripts) has no licence, and only figures are taken from it.
"""

import json
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from swiftspec.acceptance.lengths import Drafted, conditional_rates, unconditional_rates
from swiftspec.files.document import Document, Facts
from swiftspec.policies import DraftKind

_PUBLISHED, _BY_POSITION = (Path(__file__).with_name(name) for name in ("published.json", "by_position.json"))
LONGEST = 64  # tokens of a chain
_ROUNDING = 0.005  # of lengths with two decimals


class Quantity(StrEnum):
    """Quantity that the values of a record measure."""

    CUMULATIVE_ACCEPTANCE = "cumulative_acceptance"  # by position: share of rounds that accepted this far
    CUMULATIVE_RANK_ACCEPTANCE = "cumulative_rank_acceptance"  # by rank: share of tokens among the draft's first r
    MEAN_LENGTH = "mean_length"  # tokens per verification


class PublishedAcceptance(Facts):
    """One published vector or figure; greedy decoding throughout."""

    target: str
    draft: str
    shape: str  # drafted shape: a chain, a tree
    dataset: str
    quantity: Quantity
    bonus: bool | None  # whether a length counts the bonus token; None if the source does not say
    values: tuple[float, ...]
    hardware: str  # empty if the source does not say
    source: str
    note: str
    verified: str = ""  # when the values were compared with the source again, and what was read then; empty if never


@cache
def published_acceptance() -> tuple[PublishedAcceptance, ...]:
    return tuple(map(PublishedAcceptance.model_validate, json.loads(_PUBLISHED.read_text(encoding="utf-8"))))


class Form(StrEnum):
    """What the values of a record are."""

    RATES = "rates"  # unconditional, by position
    LENGTHS = "lengths"  # mean tokens per verification of chains of 1, 2, .. tokens
    LENGTH = "length"  # mean tokens per verification of chains of num_draft_tokens


class AcceptanceRecord(Facts):
    """Acceptance of a drafter's chains, or of its trees, as its source gives it."""

    # target, drafter: registered names where there is one, otherwise the source's
    target: str
    drafter: str
    kind: DraftKind | None = None  # None where drafts are looked up in the text
    dataset: str = ""  # empty if unknown, as are `hardware` and `note`
    temperature: float | None = Field(default=None, ge=0)  # None if unknown, as are `thinking` and `context`
    thinking: bool | None = None
    context: int | None = Field(default=None, ge=1)  # prompt tokens
    quantity: Form
    bonus: bool  # whether the source's lengths count the bonus token
    num_draft_tokens: int = Field(ge=1, le=LONGEST)  # tokens of the longest chain; levels of a tree
    # top_k, rows: of a tree, whose length is known: as of `Drafted`
    top_k: int = Field(default=1, ge=1)
    rows: int | None = Field(default=None, ge=2)
    values: tuple[float, ...]  # as in the source
    hardware: str = ""
    source: str
    note: str = ""
    verified: str = ""  # when the values were compared with the source again, and what was read then; empty if never

    @model_validator(mode="after")
    def _check(self) -> Self:
        expected = 1 if self.quantity is Form.LENGTH else self.num_draft_tokens
        if len(self.values) != expected:
            raise ValueError(f"values has {len(self.values)} numbers; expected {expected}")
        longest = [self.num_draft_tokens] if self.quantity is Form.LENGTH else range(1, self.num_draft_tokens + 1)
        for number, value in zip(longest, self.values, strict=True):
            least, most = (0, 1) if self.quantity is Form.RATES else (int(self.bonus), number + self.bonus)
            if not least <= value <= most + _ROUNDING:
                raise ValueError(f"values has {value:g}; expected {least} to {most} for chains of {number}")
        return self

    @property
    def rates(self) -> tuple[float, ...]:
        """Unconditional rate of every position; never rises."""
        if self.quantity is Form.LENGTH:
            # The conditional rate that, the same at every position, gives the mean length.
            mean_rate = self._drafted.rate(self.values[0] + 1 - self.bonus)
            return unconditional_rates([mean_rate] * self.num_draft_tokens)
        return smooth_rates(self.raw_rates)

    @property
    def conditional(self) -> tuple[float, ...]:
        """Conditional rate of every position."""
        return conditional_rates(self.rates)

    def length(self, num_draft_tokens: int) -> float:
        """Mean tokens per verification of such chains, with the bonus token. ValueError for longer ones than known."""
        if not 0 <= num_draft_tokens <= self.num_draft_tokens:
            raise ValueError(f"num_draft_tokens is {num_draft_tokens}; expected 0 to {self.num_draft_tokens}")
        return 1.0 + sum(self.rates[:num_draft_tokens])

    @property
    def basis(self) -> str:
        """What the rates by position rest on; a clause."""
        counted = "the bonus token counted" if self.bonus else "without the bonus token"
        if self.quantity is Form.LENGTH:
            return (
                f"one mean length over {self._drafted}, {counted}; assumed: the same conditional rate at every position"
            )
        raw = self.raw_rates
        change = max(abs(smooth - rate) for smooth, rate in zip(smooth_rates(raw), raw, strict=True))
        smoothed = f"; smoothed so that none rises, by at most {change:.2f}" if change > _ROUNDING else ""
        if self.quantity is Form.RATES:
            return f"rates by position{smoothed}"
        return f"differences of mean lengths of chains of 1 to {self.num_draft_tokens} tokens, {counted}{smoothed}"

    @property
    def key(self) -> str:
        """Target, drafter and conditions, in words."""
        thinking = {None: "", True: "thinking", False: "not thinking"}[self.thinking]
        conditions = (
            f"on {self.dataset}" if self.dataset else "",
            f"temperature {self.temperature:g}" if self.temperature is not None else "",
            thinking,
            f"{self.context} prompt tokens" if self.context is not None else "",
        )
        return ", ".join([f"{self.target} with {self.drafter} ({self.kind or 'looked up'})", *filter(None, conditions)])

    @property
    def raw_rates(self) -> list[float]:
        """Unconditional rates as the source implies them; they may rise, and lengths that fall make them negative."""
        if self.quantity is Form.RATES:
            return list(self.values)
        return [after - before for before, after in pairwise((float(self.bonus), *self.values))]

    @property
    def _drafted(self) -> Drafted:
        return Drafted(steps=self.num_draft_tokens, top_k=self.top_k, rows=self.rows)


class AcceptanceRecords(Document):
    """A file of records."""

    schema_name: ClassVar[str] = "swiftspec.acceptance-by-position"
    schema_version: ClassVar[int] = 1

    records: tuple[AcceptanceRecord, ...] = Field(min_length=1)


@cache
def published_records() -> tuple[AcceptanceRecord, ...]:
    """Every published record: the vectors of `published_acceptance`, and those of heads and block drafters."""
    chains = [one for one in published_acceptance() if one.quantity is Quantity.CUMULATIVE_ACCEPTANCE]
    heads = json.loads(_BY_POSITION.read_text(encoding="utf-8"))
    return (*map(_of_chain, chains), *map(AcceptanceRecord.model_validate, heads))


def _of_chain(published: PublishedAcceptance) -> AcceptanceRecord:
    same = published.model_dump(include={"target", "dataset", "values", "hardware", "source", "note", "verified"})
    return AcceptanceRecord(
        **same,
        drafter=published.draft,
        kind=DraftKind.HEAD if "eagle" in published.draft.lower() else DraftKind.SERIAL,
        temperature=0.0,
        quantity=Form.RATES,
        bonus=False,
        num_draft_tokens=len(published.values),
    )


def smooth_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """The nearest rates, by least squares, that never rise and lie between 0 and 1 (isotonic regression)."""
    from scipy.optimize import isotonic_regression  # takes a fifth of a second, and most plans do not need it

    fitted = isotonic_regression(rates, increasing=False).x
    return tuple(min(1.0, max(0.0, float(rate))) for rate in fitted)
