"""Policies whose draft has devices of its own, and works while the target verifies."""
