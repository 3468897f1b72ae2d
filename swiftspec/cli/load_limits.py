"""Limits of the scheduler on the command line, for the verbs that serve a workload."""

from collections.abc import Mapping

from swiftspec.api.serving import LoadOptions
from swiftspec.scheduler.controls.named import control_under

__all__ = ["Limits", "load_options", "refuse_limits"]

Limits = Mapping[str, float | str | None]  # settings by name, `control` and `replay`; None if not given
_FIELDS = {"kv_blocks": "num_blocks", "prefill_tokens": "prefill_rows", "gather_ms": "gather_s"}
_OWN_FLAGS = ("control", "replay", "engine", "set")


def load_options(limits: Limits, usual: LoadOptions | None = None) -> LoadOptions:
    """The limits that are given, and the usual ones for the others."""
    values = {_FIELDS.get(name, name): value for name, value in limits.items() if value is not None}
    if isinstance(gather_ms := values.get("gather_s"), float):
        values["gather_s"] = gather_ms / 1e3
    if isinstance(control := values.get("control"), str):
        control_under(control, None)
    return (usual or LoadOptions()).model_copy(update=values)


def refuse_limits(limits: Limits) -> None:
    """ValueError if a limit is given without a load."""
    for name, value in limits.items():
        if value is not None:
            flag = f"--{name}" if name in _OWN_FLAGS else f"--set {name}"
            raise ValueError(f"{flag} is {value}; it is only for --load")
