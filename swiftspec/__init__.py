"""Plan, run and validate low-latency LLM decoding. Stays light: importing this loads neither torch nor transformers.

>>> deployment = swiftspec.Deployment(device="h800", num_devices=8, quant="int4")
>>> planned = swiftspec.plan("llama-3-70b", "llama-3.2-3b", deployment=deployment)
>>> planned.save("plan.json")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from swiftspec.version import __version__

if TYPE_CHECKING:
    from swiftspec.artifacts.goal import Goal, Objective
    from swiftspec.artifacts.plan import Plan
    from swiftspec.artifacts.planned import Planned
    from swiftspec.artifacts.profile import Profile
    from swiftspec.artifacts.report import Report
    from swiftspec.artifacts.timeline import Timeline
    from swiftspec.artifacts.trace import AcceptanceTrace
    from swiftspec.engine.api import AsyncEngine, Engine
    from swiftspec.planner.deployment import Deployment
    from swiftspec.planner.options import SearchOptions
    from swiftspec.stages import compare, plan, profile, simulate, trace, validate

# Where each name lies; it is loaded when it is first asked for.
_HOMES = {
    "AcceptanceTrace": "artifacts.trace",
    "AsyncEngine": "engine.api",
    "Deployment": "planner.deployment",
    "Engine": "engine.api",
    "Goal": "artifacts.goal",
    "Objective": "artifacts.goal",
    "Plan": "artifacts.plan",
    "Planned": "artifacts.planned",
    "Profile": "artifacts.profile",
    "Report": "artifacts.report",
    "SearchOptions": "planner.options",
    "Timeline": "artifacts.timeline",
    "compare": "stages",
    "plan": "stages",
    "profile": "stages",
    "simulate": "stages",
    "trace": "stages",
    "validate": "stages",
}

__all__ = [
    "AcceptanceTrace",
    "AsyncEngine",
    "Deployment",
    "Engine",
    "Goal",
    "Objective",
    "Plan",
    "Planned",
    "Profile",
    "Report",
    "SearchOptions",
    "Timeline",
    "__version__",
    "compare",
    "plan",
    "profile",
    "simulate",
    "trace",
    "validate",
]


def __dir__() -> list[str]:
    """Public names of this package, loaded or not."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """A public name, from where it lies."""
    if name in _HOMES:
        return getattr(import_module(f"swiftspec.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
