"""Scheduler: which requests run, and which of their forwards make the next step of a device group. Pure; no clock."""
