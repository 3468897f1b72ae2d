"""The record of a machine, which must come out whatever is installed there."""

import sys
from pathlib import Path

import pytest

from tools.environment import environment_record


def install(folder: Path, name: str, version: str | None) -> None:
    """Metadata of a package; without a version, what an interrupted installation leaves."""
    place = folder / f"{name}-{version or 0}.dist-info"
    place.mkdir(parents=True)
    if version is not None:
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_the_imported_version_is_recorded_and_a_broken_package_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "carried", "some-package", "2.0")
    install(tmp_path / "image", "some-package", "1.0")
    install(tmp_path / "image", "broken-package", None)
    for folder in ("image", "carried"):  # the last one comes first
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    packages = environment_record("cpu", commit="abc", triton_cache=None)["packages"]
    assert packages["some-package"] == "2.0"
    assert "broken-package" not in packages
    assert packages["torch"]


def test_a_tool_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(600)\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tools.environment._TOOL_LIMIT_S", 0.2)
    record = environment_record("cuda", commit="abc", triton_cache=tmp_path)
    assert record["gpu"] == {}
    assert record["device"].endswith("no GPU")
    assert record["triton_cache_entries"] == 1
