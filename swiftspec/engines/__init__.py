"""Engines that serve, as data: how each forms a step, its limits, its host time, and what lies above it."""

from swiftspec.engines.described import ENGINES, engine_named
from swiftspec.engines.description import Engine

__all__ = ["ENGINES", "Engine", "engine_named"]
