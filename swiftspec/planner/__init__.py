"""Chooses policy, tree shape and placement by simulation. Imports the simulator and the contracts; never torch."""

from swiftspec.planner.degrees import AllowedDegrees
from swiftspec.planner.evaluation import warm_up
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search import Search, make_plan
from swiftspec.planner.sensitivity import Changes

__all__ = ["AllowedDegrees", "Changes", "MemoryModel", "Search", "make_plan", "warm_up"]
