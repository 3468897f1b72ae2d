"""Plan, run and validate low-latency LLM decoding. Stays light: importing this loads neither torch nor transformers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from swiftspec.version import __version__

if TYPE_CHECKING:
    from swiftspec.engine.api import AsyncEngine, Engine

__all__ = ["AsyncEngine", "Engine", "__version__"]


def __dir__() -> list[str]:
    """What can be had of this package, whether it is loaded yet or not."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """`Engine` and `AsyncEngine`, which need more than this."""
    if name in ("AsyncEngine", "Engine"):
        return getattr(import_module("swiftspec.engine.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
