"""Discrete-event simulation of role programs: what the planner and the validator predict with. SimPy; never torch."""
