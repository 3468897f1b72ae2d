"""Fixtures of the command line and of a server, for the studies' own verbs."""

from tests.cli.conftest import fails
from tests.server.conftest import plan_file

__all__ = ["fails", "plan_file"]
