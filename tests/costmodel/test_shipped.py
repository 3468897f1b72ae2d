from pathlib import Path

import pytest

from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.costmodel.shipped import kernels_of, shipped_tables, source_of
from swiftspec.devices import DEVICES
from swiftspec.files.document import file_sha256


def test_source_names_the_tables_their_licence_and_their_sum() -> None:
    path = shipped_tables("h800-sxm")
    assert path is not None
    said = source_of("h800-sxm")
    assert said.startswith("op tables of h100-sxm, ")
    assert "NVIDIA" in said
    assert said.endswith(f"; Apache-2.0; h100-sxm/ops.npz, SHA-256 {file_sha256(path)}")


def test_without_tables_the_source_is_the_datasheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swiftspec.costmodel.shipped._PROFILES", tmp_path)
    assert source_of("l40s") == f"rooflines of l40s: {DEVICES['l40s'].source}"


def test_a_device_of_another_maker_has_rooflines_and_says_what_is_assumed() -> None:
    assert shipped_tables("mi300x") is None
    assert type(kernels_of("mi300x")) is Kernels
    said = source_of("mi300x")
    assert said.startswith("rooflines of mi300x: AMD Instinct MI300X data sheet; ")
    assert said.endswith("engines' own times, are those of NVIDIA devices, which is assumed")
