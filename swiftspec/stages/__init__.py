"""The stages as functions: profile, trace, plan, simulate, validate, compare. The command line calls the same code.

Each takes and returns objects; `save` and `load` make files of them. What they need is imported when they are called.
Every mistake in an argument is a ValueError of one sentence that names the field and its value.
"""

from swiftspec.stages.planning import plan, simulate
from swiftspec.stages.recording import NUM_CANDIDATES, profile, trace
from swiftspec.stages.validating import compare, validate

__all__ = ["NUM_CANDIDATES", "compare", "plan", "profile", "simulate", "trace", "validate"]
