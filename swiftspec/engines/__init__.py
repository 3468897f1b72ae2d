"""Engines that serve, as data: how each forms a step, its limits, its host time, and what lies above it."""

from collections.abc import Mapping
from typing import Final

from swiftspec.engines.description import Engine
from swiftspec.engines.llamacpp import LLAMACPP
from swiftspec.engines.sglang import SGLANG
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.engines.trtllm import TRTLLM
from swiftspec.engines.vllm import VLLM
from swiftspec.errors import FieldError
from swiftspec.models.names import unknown

__all__ = ["ENGINES", "Engine", "engine_named"]

ENGINES: Final[Mapping[str, Engine]] = {engine.name: engine for engine in (SWIFTSPEC, VLLM, SGLANG, TRTLLM, LLAMACPP)}
_SPELLINGS: Final = {"tensorrt-llm": "trtllm", "llama.cpp": "llamacpp", "llama-cpp": "llamacpp"}
_FORMER_NAMES: Final = {"auto": SWIFTSPEC.name}


def engine_named(text: str) -> Engine:
    """An engine by `NAME` or `NAME@RELEASE`, in either case. ValueError, one sentence, for an unknown one."""
    name, at, release = text.strip().partition("@")
    lower = name.strip().lower()
    found = ENGINES.get(_SPELLINGS.get(lower, lower))
    if lower in _FORMER_NAMES:
        raise FieldError("engine", f"{name!r}, which is called {_FORMER_NAMES[lower]} now")
    if found is None:
        raise unknown("engine", name, ENGINES)
    return found.at(release) if at else found
