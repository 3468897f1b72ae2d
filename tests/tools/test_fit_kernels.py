"""The constants of composition: refitting gives those of the file."""

import pytest

from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.costmodel.shipped import shipped_tables
from tools.fit_kernels import fit_kernels


def test_constants_follow_from_the_shipped_tables() -> None:
    paths = [shipped_tables(device) for device in ("h100-sxm", "h200-sxm")]
    refitted = fit_kernels([OpTables.load(path) for path in paths if path is not None])
    assert refitted == pytest.approx({name: CONSTANTS[name] for name in refitted}, rel=0.005)
