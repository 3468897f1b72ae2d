"""Former words of plans, as today's."""

from typing import Any, Final

from swiftspec.engines import FORMER_NAMES
from swiftspec.policies.effects import Role

__all__ = ["LAYOUT", "as_today"]

LAYOUT: Final = r"^((dp\d+)?(tp\d+)?(ep\d+)?)$"  # as `DeviceLayout` writes it


def as_today(values: Any) -> Any:
    """Values of a plan: its engine by its name of today, and whole experts, on devices of the choice, as a layout."""
    if not isinstance(values, dict):
        return values
    found = {name: value for name, value in values.items() if name != "expert_parallel"}
    if isinstance(engine := values.get("engine"), str):
        found["engine"] = FORMER_NAMES.get(engine, engine)
    if values.get("expert_parallel") is True:
        try:
            degree = len(values["chosen"]["groups"][Role.TARGET])
        except (KeyError, TypeError):
            return found  # whose other errors are told
        found["layout"] = f"tp{degree}ep{degree}"
    return found
