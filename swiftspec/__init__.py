"""Plan, run and validate low-latency LLM decoding with speculative decoding.

The stages are functions: `profile` and `trace` measure a model pair on this machine, `plan` chooses how to decode,
`simulate` replays a plan, and `validate` compares it with measurements. `Engine` and `AsyncEngine` run a plan, and
`figures` (`swiftspec.reports.figures`) draws all of these. Times are in seconds,
sizes in bytes. Importing this package loads neither torch nor transformers.

Examples
--------
Plan for eight GPUs without having them:

>>> import swiftspec
>>> h800 = swiftspec.Deployment(device="h800", num_devices=8, quant="int4")
>>> planned = swiftspec.plan("llama-3-70b", "llama-3.2-3b", deployment=h800)
>>> planned.save("h800.json").chosen.policy
'swiftspec'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from swiftspec.errors import extras_named
from swiftspec.version import __version__ as __version__

if TYPE_CHECKING:
    from swiftspec.api import plan as plan
    from swiftspec.api import profile as profile
    from swiftspec.api import simulate as simulate
    from swiftspec.api import trace as trace
    from swiftspec.api import validate as validate
    from swiftspec.artifacts.goal import Goal as Goal
    from swiftspec.artifacts.goal import Objective as Objective
    from swiftspec.artifacts.metrics import measure as measure
    from swiftspec.artifacts.plan import Plan as Plan
    from swiftspec.artifacts.planned import Planned as Planned
    from swiftspec.artifacts.profile import Profile as Profile
    from swiftspec.artifacts.report import Report as Report
    from swiftspec.artifacts.trace import AcceptanceTrace as AcceptanceTrace
    from swiftspec.engine.api import Engine as Engine
    from swiftspec.engine.async_api import AsyncEngine as AsyncEngine
    from swiftspec.planner.deployment import Deployment as Deployment
    from swiftspec.planner.search.options import SearchOptions as SearchOptions
    from swiftspec.reports import figures as figures
    from swiftspec.timing.timeline import Timeline as Timeline

# Module of each public name, which is imported on first use.
_HOMES = {
    "AcceptanceTrace": "artifacts.trace",
    "AsyncEngine": "engine.async_api",
    "Deployment": "planner.deployment",
    "Engine": "engine.api",
    "Goal": "artifacts.goal",
    "Objective": "artifacts.goal",
    "Plan": "artifacts.plan",
    "Planned": "artifacts.planned",
    "Profile": "artifacts.profile",
    "Report": "artifacts.report",
    "SearchOptions": "planner.search.options",
    "Timeline": "timing.timeline",
    "measure": "artifacts.metrics",
    "plan": "api",
    "profile": "api",
    "simulate": "api",
    "trace": "api",
    "validate": "api",
}

__all__ = ["figures", *_HOMES]


def __dir__() -> list[str]:
    """Public names of this package, loaded or not."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    with extras_named(needed_by=f"swiftspec.{name}"):
        if name == "figures":  # a module
            return import_module("swiftspec.reports.figures")
        if name in _HOMES:
            return getattr(import_module(f"swiftspec.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
