"""Checks on this machine, one a module, and their runner: `python -m tools.checks --list`."""
