import pytest

from swiftspec.backtest.acceptance import acceptance_rows
from swiftspec.backtest.rows import Constant, Row
from swiftspec.backtest.serving import serving_rows
from swiftspec.backtest.systems import system_rows

Found = tuple[list[Row], list[Constant]]


@pytest.fixture(scope="session")
def acceptance() -> Found:
    """Rows and constants of the section, predicted once."""
    return acceptance_rows()


@pytest.fixture(scope="session")
def serving() -> Found:
    return serving_rows()


@pytest.fixture(scope="session")
def systems() -> list[Row]:
    return system_rows()
