"""Runs a plan on a real device: decoder, cache, sampling, processes. Never imports the simulator or the planner."""
