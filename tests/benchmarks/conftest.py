"""Prints the ratios to other engines below the tables of times."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line for each comparison, with the settings that were the other engine's best."""
    session = getattr(config, "_benchmarksession", None)  # pytest-benchmark's, if it is active
    for done in session.benchmarks if session is not None else ():
        about = dict(done.extra_info)
        if (ratio := about.pop("ratio", None)) is not None:
            terminalreporter.write_line(f"{ratio:.2f} times  {done.name}  {about}")
