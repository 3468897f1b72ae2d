"""Limits of the scheduler on the command line, for the verbs that serve a workload."""

from collections.abc import Mapping

from swiftspec.scheduler.controls.named import control_under
from swiftspec.stages.serving import LoadOptions

__all__ = ["Limits", "load_options", "refuse_limits"]

Limits = Mapping[str, float | str | None]  # values of flags; None if not given
_FIELDS = {
    "--max-running": "max_running",
    "--max-waiting": "max_waiting",
    "--kv-blocks": "num_blocks",
    "--prefill-tokens": "prefill_rows",
    "--gather-ms": "gather_s",
    "--control": "control",
    "--replay": "replay",
}


def load_options(limits: Limits, usual: LoadOptions | None = None) -> LoadOptions:
    """The limits that are given, and the usual ones for the others."""
    values = {_FIELDS[flag]: value for flag, value in limits.items() if value is not None}
    if isinstance(gather_ms := values.get("gather_s"), float):
        values["gather_s"] = gather_ms / 1e3
    if isinstance(control := values.get("control"), str):
        control_under(control, None)
    return (usual or LoadOptions()).model_copy(update=values)


def refuse_limits(limits: Limits) -> None:
    """ValueError if a limit is given without a workload."""
    for flag, value in limits.items():
        if value is not None:
            raise ValueError(f"{flag} is {value}; it is only for --workload")
