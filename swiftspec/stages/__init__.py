"""The stages as functions: profile, trace, plan, simulate, validate, compare. The command line calls the same code.

`simulate_load`, `validate_load` and `sweep` are those of many requests, with a workload of `swiftspec.workload`; `atts`
and `simulate_atts` sample questions on two servers, by asynchronous test-time scaling. `compare_kinds` lays kinds of
drafts side by side.

Each takes and returns objects, which `save` and `load` convert to and from files. Imports happen when a stage is
called. A wrong argument raises a ValueError of one sentence that names the field and its value.
"""

from swiftspec.stages.comparing import compare_kinds
from swiftspec.stages.planning import plan, simulate
from swiftspec.stages.recording import NUM_CANDIDATES, profile, trace
from swiftspec.stages.scaling import AttsServer, atts, simulate_atts
from swiftspec.stages.serving import LoadOptions, simulate_load
from swiftspec.stages.sweeping import Measuring, sweep
from swiftspec.stages.validating import compare, validate
from swiftspec.stages.validating_load import validate_load

__all__ = [
    "NUM_CANDIDATES",
    "AttsServer",
    "LoadOptions",
    "Measuring",
    "atts",
    "compare",
    "compare_kinds",
    "plan",
    "profile",
    "simulate",
    "simulate_atts",
    "simulate_load",
    "sweep",
    "trace",
    "validate",
    "validate_load",
]
