"""The verbs as functions: profile, trace, plan, simulate, validate.

`simulate_load` and `validate_load` are those of many requests, with a workload of `swiftspec.workload`. `compare_kinds`
lays kinds of drafts side by side at several loads.

Each takes and returns objects, which `save` and `load` convert to and from files. Imports happen when a stage is
called. A wrong argument raises a ValueError of one sentence that names the field and its value.
"""

from swiftspec.api.planning import compare_kinds, plan, simulate, simulate_load
from swiftspec.api.recording import NUM_CANDIDATES, profile, trace
from swiftspec.api.validating import validate, validate_load
from swiftspec.artifacts.load_options import LoadOptions

__all__ = [
    "NUM_CANDIDATES",
    "LoadOptions",
    "compare_kinds",
    "plan",
    "profile",
    "simulate",
    "simulate_load",
    "trace",
    "validate",
    "validate_load",
]
