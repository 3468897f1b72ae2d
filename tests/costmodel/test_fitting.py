"""The constants of composition: refitting gives those of the file."""

import pytest

from swiftspec.costmodel.constants import CONSTANTS, fitted_constants
from swiftspec.costmodel.fitting import fit_kernels
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.costmodel.shipped import shipped_tables


def test_constants_follow_from_the_shipped_tables() -> None:
    paths = [shipped_tables(device) for device in ("h100-sxm", "h200-sxm")]
    refitted = fit_kernels([OpTables.load(path) for path in paths if path is not None])
    assert refitted == pytest.approx({name: CONSTANTS[name] for name in refitted}, rel=0.005)


def test_every_constant_says_what_it_was_fitted_on() -> None:
    for constant in fitted_constants():
        assert constant.fitted_on
        assert constant.value > 0
