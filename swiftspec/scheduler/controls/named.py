"""Controls by name, as users write them."""

from swiftspec.scheduler.controls.control import Control
from swiftspec.scheduler.controls.fixed import Fixed
from swiftspec.scheduler.controls.goodput import Goodput, GoodputPerRequest
from swiftspec.scheduler.controls.slo import Slo
from swiftspec.scheduler.controls.worth import Worth

__all__ = ["CONTROLS", "NO_CONTROL", "control_under", "named_control"]

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
        raise ValueError(f"control is {name!r}; expected one of {', '.join(CONTROLS)}, with a whole number for K")
    return _NAMED[name]


def control_under(given: str | None, planned: str | None) -> Control | None:
    """The control that is given by name, else the planned one; None without either, or if `none` is given."""
    name = planned if given is None else given
    return None if name in (None, NO_CONTROL) else named_control(name)
