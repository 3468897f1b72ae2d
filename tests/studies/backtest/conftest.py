import pytest

from swiftspec.studies.backtest.acceptance import acceptance_rows
from swiftspec.studies.backtest.loads import POINTS, SPARSE_POINTS, load_section
from swiftspec.studies.backtest.rows import Constant, Row, Section
from swiftspec.studies.backtest.sparse_systems import sparse_system_rows
from swiftspec.studies.backtest.systems import system_rows

Found = tuple[list[Row], list[Constant]]


@pytest.fixture(scope="session")
def acceptance() -> Found:
    """Rows and constants of the section, predicted once."""
    return acceptance_rows()


@pytest.fixture(scope="session")
def serving() -> Section:
    return load_section(POINTS)


@pytest.fixture(scope="session")
def systems() -> list[Row]:
    return system_rows()


@pytest.fixture(scope="session")
def sparse_points() -> Section:
    return load_section(SPARSE_POINTS)


@pytest.fixture(scope="session")
def sparse_systems() -> list[Row]:
    return sparse_system_rows()
