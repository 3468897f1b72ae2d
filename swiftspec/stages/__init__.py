"""The stages as functions: profile, trace, plan, simulate, validate, compare. The command line calls the same code.

`simulate_load` and `validate_load` are those of many requests, with a workload of `swiftspec.workload`. `compare_kinds`
lays kinds of drafts side by side.

Each takes and returns objects, which `save` and `load` convert to and from files. Imports happen when a stage is
called. A wrong argument raises a ValueError of one sentence that names the field and its value.
"""

from swiftspec.stages.comparing import compare_kinds
from swiftspec.stages.planning import plan, simulate
from swiftspec.stages.recording import NUM_CANDIDATES, profile, trace
from swiftspec.stages.serving import LoadOptions, simulate_load
from swiftspec.stages.validating import compare, validate
from swiftspec.stages.validating_load import validate_load

__all__ = [
    "NUM_CANDIDATES",
    "LoadOptions",
    "compare",
    "compare_kinds",
    "plan",
    "profile",
    "simulate",
    "simulate_load",
    "trace",
    "validate",
    "validate_load",
]
