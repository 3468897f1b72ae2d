"""Fixture of the command line, for the studies' own verbs."""

from tests.cli.conftest import fails

__all__ = ["fails"]
