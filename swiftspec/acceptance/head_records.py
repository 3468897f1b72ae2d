"""Acceptance of heads and parallel drafts by position, for planning: published for the target, or of heads like it."""

import re
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.records import (
    AcceptanceRecord,
    Form,
    conditional_rates,
    published_records,
)
from swiftspec.policies import DraftKind
from swiftspec.timing.latency import Provenance

__all__ = ["PositionRates", "given_rates", "published_rates"]


class PositionRates(NamedTuple):
    """Conditional rates by position, one clause about their source, and its provenance."""

    rates: tuple[float, ...]
    source: str
    provenance: Provenance

    @property
    def basis(self) -> str:
        """Where acceptance is from. Of the candidates after the first nothing is known."""
        return f"{self.source}; second and later candidates, which only trees use, are assumed"


def given_rates(given: GivenAcceptance) -> PositionRates:
    """What a user gave: shares of rounds by position; or a mean share, from the same conditional rate everywhere."""
    rates = conditional_rates(given.rates)
    if len(given.rates) == 1:
        accepted = given.rates[0] * given.num_draft_tokens
        record = AcceptanceRecord(
            target="",
            drafter="",
            kind=DraftKind.HEAD,
            quantity=Form.LENGTH,
            bonus=False,
            num_draft_tokens=given.num_draft_tokens,
            values=(accepted,),
            source="given",
        )
        rates = record.conditional
    return PositionRates(rates, given.describe(), Provenance.ASSUMED)


def published_rates(
    target: str, drafter: str, dataset: str | None = None, *, records: Sequence[AcceptanceRecord] | None = None
) -> PositionRates:
    """Rates of a head with a target on a data set, or on the mean of all; without any, those of other targets' heads.

    records: all published ones, if not given. ValueError if nothing is published of such heads, or not on this data
    set.
    """
    published = published_records() if records is None else records
    same = [one for one in published if _words(one.drafter) == _words(drafter)]
    own = [one for one in same if one.target == target]
    found = [one for one in own or same if dataset in (None, one.dataset)]
    if not found:
        known = ", ".join(sorted({one.dataset for one in own or same if one.dataset}))
        where = f"on dataset {dataset}; expected one of {known}" if known else "anywhere"
        raise ValueError(f"acceptance of {drafter} with {target} is not published {where}: give it with --acceptance")
    datasets = sorted({one.dataset for one in found if one.dataset})
    on = f" on {', '.join(datasets)}" if datasets else ""
    sources = "; ".join(sorted({one.source for one in found}))
    if own:
        return PositionRates(_mean(found), f"published{on}: {sources}", Provenance.PUBLISHED)
    targets = ", ".join(sorted({one.target for one in found}))
    basis = f"no acceptance of {drafter} with {target} is published; the mean of {targets}{on} stands in: {sources}"
    return PositionRates(_mean(found), basis, Provenance.ASSUMED)


def _mean(records: Sequence[AcceptanceRecord]) -> tuple[float, ...]:
    """Mean conditional rate at each position of the longest chain; beyond a shorter one its last rate holds."""
    longest = max(one.num_draft_tokens for one in records)
    padded = [(*one.conditional, *[one.conditional[-1]] * (longest - one.num_draft_tokens)) for one in records]
    return tuple(mean(column) for column in zip(*padded, strict=True))


def _words(name: str) -> str:
    """A drafter's name without its publisher and what sets checkpoints of one kind apart."""
    kinds = re.findall(r"p-?eagle|eagle-?3|dspark|dflash|mtp|pard", name.lower())
    return str(kinds[-1]).replace("-", "") if kinds else name.lower()
