"""Controls by name, as users write them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.errors import FieldError
from swiftspec.scheduler.asks import equal_shares
from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.controls.goodput import Goodput, GoodputPerRequest
from swiftspec.scheduler.controls.worth import Slo, Worth
from swiftspec.scheduler.costs import RoundCosts

_NAMED: dict[str, Control] = {
    "goodput": Goodput(),
    "goodput-per-request": GoodputPerRequest(),
    "worth": Worth(),
    "slo": Slo(),
}
CONTROLS = ("fixed:K", *_NAMED)
NO_CONTROL = "none"


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
        """Rows of each request."""
        wanted = [1 + min(self.num_draft_rows, len(demand.survival)) for demand in demands]
        return equal_shares(wanted, max_rows)


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
