import os
import stat
import sys
from pathlib import Path

import pytest

from swiftspec.kernels import cpu_library
from swiftspec.kernels.cpu_library import prepare_library


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "swiftspec"


def compiler(folder: Path, script: str) -> str:
    """A program in place of a compiler, whose last argument is where to write."""
    path = folder / "compiler"
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_compiles_once_and_says_so(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "calls"
    script = f"Path(sys.argv[-1]).write_bytes(b'x'); open({str(log)!r}, 'a').write('called ')"
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    for _ in range(2):
        prepare_library()
    assert [path.suffix for path in cache.iterdir()] == [".so"]
    assert log.read_text() == "called "
    assert caplog.messages == ["compiling the CPU kernels for this machine, once (some 10 s)"]


@pytest.mark.parametrize("variable", ["ATEN_CPU_CAPABILITY", "CXX"])
def test_another_compiler_or_instruction_set_is_another_library(
    variable: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = compiler(tmp_path, "Path(sys.argv[-1]).write_bytes(b'x')")
    monkeypatch.setenv("CXX", program)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    prepare_library()
    monkeypatch.setenv(variable, {"ATEN_CPU_CAPABILITY": "avx2", "CXX": f"{program} -g"}[variable])
    prepare_library()
    assert len(list(cache.iterdir())) == 2


def test_no_compiler_is_said_and_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    prepare_library()
    assert caplog.messages == ["there is no C++ compiler for the CPU kernels, so torch computes, several times slower"]
    assert not cache.exists()


def test_a_compiler_that_fails_leaves_nothing(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, "sys.exit('no')"))
    prepare_library()
    assert "cannot be compiled" in caplog.messages[-1]
    assert not list(cache.iterdir())


def test_switched_off_nothing_is_compiled_or_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SWIFTSPEC_CPU_KERNELS", "off")
    prepare_library()
    assert not caplog.messages
    assert not cache.exists()


def test_structs_are_those_of_the_sources() -> None:
    """Names and order of the fields, as linear.hpp and model.hpp declare them."""
    folder = Path(cpu_library.__file__).parent / "cpu"
    text = "".join((folder / name).read_text() for name in ("linear.hpp", "model.hpp"))
    structs = (
        cpu_library.Matrix,
        cpu_library.Adapter,
        cpu_library.Layer,
        cpu_library.Model,
        cpu_library.SequenceRows,
        cpu_library.Step,
    )
    for struct in structs:
        body = text.partition(f"struct {struct.__name__} {{")[2].partition("};")[0]
        fields = [line.partition("//")[0].strip() for line in body.splitlines()]
        declared = [line.rstrip(";") for line in fields if line.endswith(";") and "(" not in line]
        names = [part.split()[-1].lstrip("*") for line in declared for part in line.split(",")]
        assert names == [name for name, *_ in struct._fields_], struct


def test_nobody_else_may_write_into_the_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library is code."""
    monkeypatch.setenv("CXX", compiler(tmp_path, "Path(sys.argv[-1]).write_bytes(b'x')"))
    before = os.umask(0)
    try:
        prepare_library()
    finally:
        os.umask(before)
    assert not cache.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
