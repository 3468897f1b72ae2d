"""Chooses policy, tree shape and placement by simulation. Imports the simulator and the contracts; never torch."""

from swiftspec.planner.search import make_plan

__all__ = ["make_plan"]
