"""Acceptance of heads and parallel drafts by position, for planning: published for the target, or of heads like it."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.lengths import conditional_rates
from swiftspec.acceptance.records import AcceptanceRecord, published_records
from swiftspec.acceptance.texts import of_text
from swiftspec.acceptance.usual import family_of, mean_rates, usual_rates
from swiftspec.policies import DraftKind
from swiftspec.timing.latency import Provenance

__all__ = ["PositionRates", "given_rates", "published_rates"]

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
        return PositionRates(
            mean_rates(own, max(one.num_draft_tokens for one in own)),
            f"published{_listed(one.dataset for one in own)}: {'; '.join(sorted({one.source for one in own}))}",
            Provenance.PUBLISHED,
        )
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


def _listed(datasets: Iterable[str]) -> str:
    named = sorted({dataset for dataset in datasets if dataset})
    return f" on {', '.join(named)}" if named else ""
