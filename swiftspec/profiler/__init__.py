"""Measures latencies and acceptance on the real device. Everything runs through the engine that will run the plan."""
