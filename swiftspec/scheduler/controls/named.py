"""Controls by name, as users write them: fixed lengths, the best length, and those of `worth`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import ClassVar, NamedTuple

from swiftspec.errors import FieldError
from swiftspec.scheduler.asks import equal_shares
from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.controls.worth import Slo, Worth
from swiftspec.scheduler.costs import RoundCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Control):
    """At most `num_draft_rows` rows after the root; 0 is decoding without a draft."""

    learns: ClassVar[bool] = False

    num_draft_rows: int

    def __post_init__(self) -> None:
        if self.num_draft_rows < 0:
            raise ValueError(f"num_draft_rows is {self.num_draft_rows}; expected at least 0")

    def rows(
        self,
        demands: Sequence[Demand],
        *,
        costs: RoundCosts,  # noqa: ARG002 - they change nothing
        max_rows: int,
    ) -> list[int]:
        wanted = [1 + min(self.num_draft_rows, len(demand.survival)) for demand in demands]
        return equal_shares(wanted, max_rows)


class RoundGoodput(NamedTuple):
    """Expected tokens per second of a round in which every request drafts so many tokens."""

    num_draft_rows: int
    tokens_per_s: float


def goodput_by_length(demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> Iterator[RoundGoodput]:
    """Goodput of every draft length for which there is room, from 0."""
    num_sequences = len(demands)
    tokens, num_rows, draft_s = float(num_sequences), num_sequences, 0.0
    yield RoundGoodput(0, tokens / costs.verify_s(num_sequences, num_rows))
    for length, level in enumerate(zip_longest(*[demand.survival for demand in demands]), start=1):
        surviving = [survival for survival in level if survival is not None]
        tokens += sum(surviving)
        num_rows += len(surviving)
        if num_rows > max_rows:
            return
        draft_s += costs.level_s(length, len(surviving))
        yield RoundGoodput(length, tokens / (draft_s + costs.verify_s(num_sequences, num_rows)))


def _best_length(demands: Sequence[Demand], costs: RoundCosts, max_rows: int) -> int:
    """Draft length with the highest goodput; the shortest of equals."""
    found = goodput_by_length(demands, costs=costs, max_rows=max_rows)
    return max(found, key=lambda each: each.tokens_per_s).num_draft_rows


@dataclass(frozen=True, slots=True)
class Goodput(Control):
    """One draft length for all requests, that with the most expected tokens per second (SmartSpec, arXiv 2406.14066).

    A round of draft length k yields for every request the bonus token and the draft tokens that survive; it costs k
    draft forwards and a verification of k + 1 rows each. The paper's controller (TurboSpec's) stops at the first length
    that is worse than the one before; costs are no smooth curve, so all lengths are compared here.
    """

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        length = _best_length(demands, costs, max_rows)
        return [1 + min(length, len(demand.survival)) for demand in demands]


@dataclass(frozen=True, slots=True)
class GoodputPerRequest(Control):
    """The best common length, given to the requests in proportion to the acceptance of their first draft tokens."""

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        length = _best_length(demands, costs, max_rows)
        acceptance = [demand.survival[0] if demand.survival else 0.0 for demand in demands]
        total = sum(acceptance)
        if not total:
            return [1] * len(demands)
        lengths = [int(0.5 + length * len(demands) * each / total) for each in acceptance]
        rows = [1 + min(each, len(demand.survival)) for each, demand in zip(lengths, demands, strict=True)]
        while sum(rows) > max(max_rows, len(rows)):  # rounding up
            rows[rows.index(max(rows))] -= 1
        return rows


_NAMED: dict[str, Control] = {
    "goodput": Goodput(),
    "goodput-per-request": GoodputPerRequest(),
    "worth": Worth(),
    "slo": Slo(),
}
CONTROLS = ("fixed:K", *_NAMED)
NO_CONTROL = "none"


def named_control(name: str) -> Control:
    """The control of a name. ValueError if there is none."""
    kind, _, number = name.partition(":")
    if kind == "fixed" and number.isdecimal():
        return Fixed(num_draft_rows=int(number))
    if name not in _NAMED:
        raise FieldError("control", repr(name), f"expected one of {', '.join(CONTROLS)}, with a whole number for K")
    return _NAMED[name]


def control_under(given: str | None, planned: str | None) -> Control | None:
    """The control that is given by name, else the planned one; None without either, or if `none` is given."""
    name = planned if given is None else given
    return None if name in (None, NO_CONTROL) else named_control(name)
