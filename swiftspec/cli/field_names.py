"""Flags of the fields that errors name."""

from dataclasses import fields

from swiftspec.cli import settings
from swiftspec.cli.verbs import check, data, decide, measure, use

__all__ = ["flag_of"]

# Fields whose flag has another name.
_FLAGS = {
    "backend": "--jobs",
    "clients": "--load",
    "context": "--prompt-tokens",
    "draft_quant": "--dtype",
    "format_name": "--from",
    "host_s": "--set host_ms",
    "max_devices": "--limit devices",
    "most_requests": "--set load_requests",
    "num_devices": "--devices",
    "num_jobs": "--jobs",
    "num_requests": "--requests",
    "num_samples": "--samples",
    "percentile": "--limit p",
    "quant": "--dtype",
    "settings": "--set",
    "workload": "--load",
}
_OPTIONS = {
    option.name
    for verbs in (check, data, decide, measure, use)
    for name in verbs.__all__
    for option in fields(getattr(verbs, name))
}
_SETTINGS = {
    *settings.CONDITIONS,
    *settings.DRAWN,
    *settings.PLANNER,
    *settings.REPLAYED,
    *settings.SERVER,
    *settings.SIMULATOR,
}


def flag_of(field: str) -> str:
    """The flag by which a user gives a field: `--devices`, or `--set rate`."""
    if field in _FLAGS:
        return _FLAGS[field]
    if field in _SETTINGS and field not in _OPTIONS:
        return f"--set {field}"
    return field if field.startswith("--") else f"--{field if field.startswith('set ') else field.replace('_', '-')}"
