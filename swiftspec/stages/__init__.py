"""The stages as functions: profile, trace, plan, simulate, validate, compare. The command line calls the same code.

Each takes and returns objects, which `save` and `load` convert to and from files. Imports happen when a stage is
called. A wrong argument raises a ValueError of one sentence that names the field and its value.
"""

from swiftspec.stages.planning import plan, simulate
from swiftspec.stages.recording import NUM_CANDIDATES, profile, trace
from swiftspec.stages.validating import compare, validate

__all__ = ["NUM_CANDIDATES", "compare", "plan", "profile", "simulate", "trace", "validate"]
