"""Acceptance of heads and parallel drafts by position, for planning: published for the target, or usual for their kind.

What is usual for a kind of draft on a class of text is from the published records of all its drafters.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from math import hypot, sqrt
from statistics import mean, stdev
from typing import Final, NamedTuple

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.lengths import conditional_rates, unconditional_rates
from swiftspec.acceptance.records import AcceptanceRecord, published_records
from swiftspec.acceptance.texts import TextClass, class_of, of_text
from swiftspec.policies import DraftKind
from swiftspec.timing.latency import Provenance

DRAFT_MODEL: Final = "draft model"
_STAND_INS: Final = {"suffix": "ngram"}  # of which nobody publishes tokens per round, and what is nearest
_ENOUGH: Final = 3  # drafters, for a spread of their own, and for a single data set to speak for itself
_CHAIN: Final = 8  # tokens of the chains that tell how much drafters differ in general


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualRates:
    """What drafters of a kind have on a text."""

    # By position, the share of rounds that accept the token there, of those that accepted all before it
    rates: tuple[float, ...]
    spread: float  # standard deviation of a further drafter's tokens per round, relative
    text: str  # data set or class of text that the records are of; empty if they are of all texts
    records: tuple[AcceptanceRecord, ...]

    @property
    def num_drafters(self) -> int:
        """Heads, draft models or look-ups that the records are of, each with its target."""
        return len(_by_drafter(self.records))


def family_of(drafter: str, kind: DraftKind | None) -> str:
    """Kind of a drafter by its name, without its publisher and what sets checkpoints of one kind apart."""
    if kind is DraftKind.SERIAL:
        return DRAFT_MODEL
    kinds = re.findall(r"p-?eagle|eagle-?3|dspark|dflash|mtp|pard|eagle|n-?gram|suffix", drafter.lower())
    return str(kinds[-1]).replace("-", "") if kinds else drafter.lower()


def usual_rates(
    family: str, text: str | None, length: int, *, records: Sequence[AcceptanceRecord] | None = None
) -> UsualRates:
    """Mean of all drafters of a family on a text, each of which counts once.

    family: as of `family_of`.
    text: a data set, of which there need be no record, or a class of text. Without, every class counts alike.
    records: all published ones if not given.

    ValueError: if nothing is published of such drafters.
    """
    known = published_records() if records is None else records
    families = [family, _STAND_INS.get(family, family)]
    same = next((some for name in families if (some := [one for one in known if _family(one) == name])), [])
    if not same:
        raise ValueError(f"acceptance of {family} is not published anywhere")
    found, on = _of_text(same, text)
    classes = [found] if on else _grouped(found, lambda one: class_of(one.dataset))
    columns = [mean_rates(some, length) for some in classes]
    rates = tuple(mean(column) for column in zip(*columns, strict=True))
    return UsualRates(rates=rates, spread=_spread(found, length), text=on, records=tuple(found))


def mean_rates(records: Sequence[AcceptanceRecord], length: int) -> tuple[float, ...]:
    """Mean conditional rate at each position, of those drafters that get so far; beyond all, the last one holds."""
    drafters = [[_conditional(one) for one in some] for some in _by_drafter(records)]
    rates: list[float] = []
    for position in range(length):
        reached = [[known[position] for known in some if len(known) > position] for some in drafters]
        means = [mean(some) for some in reached if some]
        rates.append(mean(means) if means else rates[-1])
    return tuple(rates)


def records_without(source: str) -> list[AcceptanceRecord]:
    """Published records of other sources than this one, as a file of measurements names it."""
    names = _names(source)
    return [one for one in published_records() if not names & _names(one.source)]


def _names(source: str) -> set[str]:
    """What tells sources apart: repositories, with and without their owner, and the first word."""
    text = re.sub(r"https?://|(www\.)?github\.com/", "", source.lower())
    repositories = re.findall(r"[\w.-]+/[\w.-]+", text)
    first = re.findall(r"[a-z][\w.-]*", text)[:1]
    return {*repositories, *(name.partition("/")[2] for name in repositories), *first} - {"model", "page"}


def _of_text(records: Sequence[AcceptanceRecord], text: str | None) -> tuple[list[AcceptanceRecord], str]:
    """Records of a data set if enough drafters ran it, otherwise of its class, otherwise of all classes; and which."""
    usual = [one for one in records if class_of(one.dataset) not in (None, TextClass.RANDOM)]
    known = usual or list(records)
    if not text:
        return known, ""
    same = [one for one in records if one.dataset.lower() == text.lower()]
    if len(_by_drafter(same)) >= _ENOUGH:
        return same, text
    wanted = class_of(text)
    of_class = of_text(records, wanted, lambda one: one.dataset) if wanted else same
    return (of_class, str(wanted or text)) if of_class else (known, "")


def _by_drafter(records: Sequence[AcceptanceRecord]) -> list[list[AcceptanceRecord]]:
    return _grouped(records, lambda one: (one.target, one.drafter))


def _grouped(
    records: Sequence[AcceptanceRecord], by: Callable[[AcceptanceRecord], Hashable]
) -> list[list[AcceptanceRecord]]:
    groups: dict[Hashable, list[AcceptanceRecord]] = {}
    for one in records:
        groups.setdefault(by(one), []).append(one)
    return list(groups.values())


def _spread(records: Sequence[AcceptanceRecord], length: int) -> float:
    """Of a further drafter: as the known ones differ, and as little as their mean is known."""
    tokens = _tokens(records, length)
    relative = stdev(tokens) / mean(tokens) if len(tokens) >= _ENOUGH else _usual_spread()
    return hypot(relative, relative / sqrt(len(tokens)))


@cache
def _usual_spread() -> float:
    """Root mean square, over kinds and classes of text with enough drafters, of how their tokens per round differ."""
    groups = _grouped(published_records(), lambda one: (_family(one), class_of(one.dataset)))
    known = [tokens for tokens in (_tokens(records, _CHAIN) for records in groups) if len(tokens) >= _ENOUGH]
    return sqrt(mean((stdev(tokens) / mean(tokens)) ** 2 for tokens in known))


def _tokens(records: Sequence[AcceptanceRecord], length: int) -> list[float]:
    """Tokens per round of each drafter's chains."""
    return [1 + sum(unconditional_rates(mean_rates(some, length))) for some in _by_drafter(records)]


@cache
def _conditional(record: AcceptanceRecord) -> tuple[float, ...]:
    return record.conditional


def _family(record: AcceptanceRecord) -> str:
    return family_of(record.drafter, record.kind)


_LONGEST: Final = 16  # positions; beyond, the last rate holds


class PositionRates(NamedTuple):
    """Conditional rates by position, one clause about their source, its provenance, and a spread as of `UsualRates`."""

    rates: tuple[float, ...]
    source: str
    provenance: Provenance
    spread: float | None = None

    @property
    def basis(self) -> str:
        """Where acceptance is from. Of the candidates after the first nothing is known."""
        return f"{self.source}; second and later candidates, which only trees use, are assumed"


def given_rates(given: GivenAcceptance) -> PositionRates:
    """What a user gave: shares of rounds by position; or a mean share, from the same conditional rate everywhere."""
    return PositionRates(conditional_rates(given.survival), given.describe(), Provenance.GIVEN)


def published_rates(
    target: str,
    drafter: str,
    dataset: str | None = None,
    *,
    kind: DraftKind = DraftKind.HEAD,
    records: Sequence[AcceptanceRecord] | None = None,
) -> PositionRates:
    """Rates of a head with a target on a data set or its class of text; without any, those usual for its kind.

    dataset: without, on the mean of all. records: all published ones, if not given. ValueError if nothing is published
    of such heads.
    """
    published = published_records() if records is None else records
    family = family_of(drafter, kind)
    same = [one for one in published if one.target == target and family_of(one.drafter, one.kind) == family]
    if own := of_text(same, dataset, lambda one: one.dataset):
        datasets = sorted({one.dataset for one in own if one.dataset})
        on = f" on {', '.join(datasets)}" if datasets else ""
        source = f"published{on}: {'; '.join(sorted({one.source for one in own}))}"
        return PositionRates(mean_rates(own, max(one.num_draft_tokens for one in own)), source, Provenance.PUBLISHED)
    where = f" on {dataset}" if dataset and same else ""
    try:
        usual = usual_rates(family, dataset, _LONGEST, records=published)
    except ValueError as error:
        raise ValueError(f"{error}: give it with --acceptance") from None
    basis = (
        f"no acceptance of {drafter} with {target} is published{where}; the mean of {usual.num_drafters} drafters of "
        f"its kind on {usual.text or 'all texts'} stands in, from which another one's tokens per round differ by "
        f"{usual.spread:.0%}, with {', '.join(sorted({one.target for one in usual.records}))}"
    )
    return PositionRates(usual.rates, basis, Provenance.ASSUMED, usual.spread)
