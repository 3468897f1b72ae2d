import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftspec.kernels import cpu_library
from swiftspec.kernels.cpu_build import this_build
from swiftspec.kernels.cpu_cache import cache_folders, private_folder
from swiftspec.kernels.cpu_library import load_library, prepare_library
from tests.server.running import write_plan

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has files of other users")
OTHER = 54321
COMPILING = "compiling the CPU kernels for this machine, once (some 10 s)"


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library as the compiler writes it."""
    path = tmp_path_factory.mktemp("compiled") / "kernels.so"
    path.write_bytes(this_build().compile())
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is used in place of the cache."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"swiftspec-{os.geteuid()}"


@pytest.fixture
def cache(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SWIFTSPEC_CPU_KERNELS", raising=False)
    load_library.cache_clear()
    yield tmp_path / "cache" / "swiftspec"
    load_library.cache_clear()


@pytest.fixture
def calls(tmp_path: Path, cache: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often a library has been compiled since the test began, by a compiler that is quick."""
    log = tmp_path / "calls"
    log.touch()
    script = f"Path(sys.argv[-1]).write_bytes(Path({str(compiled)!r}).read_bytes()); open({str(log)!r}, 'a').write('.')"
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    return lambda: len(log.read_text())


def compiler(folder: Path, script: str) -> str:
    """A program in place of a compiler, whose last argument is where to write."""
    path = folder / "compiler"
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom pathlib import Path\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def stored(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


@needs_compiler
def test_compiles_once_and_says_so(cache: Path, calls: Callable[[], int], caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        prepare_library()
    assert load_library() is not None
    assert [path.suffix for path in stored(cache)] == [".so"]
    assert calls() == 1
    assert caplog.messages == [COMPILING]


@needs_compiler
@pytest.mark.parametrize("variable", ["ATEN_CPU_CAPABILITY", "CXX"])
def test_another_compiler_or_instruction_set_is_another_library(
    variable: str, cache: Path, calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    prepare_library()
    other = {"ATEN_CPU_CAPABILITY": "avx2", "CXX": f"{os.environ['CXX']} -g"}
    monkeypatch.setenv(variable, other[variable])
    prepare_library()
    assert len(stored(cache)) == calls() == 2


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-compiler", "there is no C++ compiler for the CPU kernels"),
        ("g++ 'x", 'CXX is "g++ \'x"; expected a command (No closing quotation)'),
    ],
)
def test_no_compiler_is_said_and_no_error(
    command: str, reason: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", command)
    prepare_library()
    assert caplog.messages == [f"{reason}, so torch computes, several times slower"]
    assert load_library() is None
    assert not cache.exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sys.exit('no')", "cannot be compiled"),
        ("Path(sys.argv[-1]).write_bytes(b'no library')", "cannot be used as they were compiled"),
    ],
)
def test_a_compiler_that_fails_leaves_nothing(
    script: str,
    reason: str,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    prepare_library()
    assert reason in caplog.messages[-1]
    assert load_library() is None
    assert not stored(cache)


def test_switched_off_nothing_is_compiled_or_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SWIFTSPEC_CPU_KERNELS", "off")
    prepare_library()
    assert load_library() is None
    assert not caplog.messages
    assert not cache.exists()


@needs_compiler
def test_a_process_that_only_loads_compiles_nothing_and_says_nothing(
    cache: Path, calls: Callable[[], int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SWIFTSPEC_CPU_KERNELS", "load")
        assert load_library() is None
        assert calls() == 0
    prepare_library()
    caplog.clear()
    load_library.cache_clear()
    monkeypatch.setenv("SWIFTSPEC_CPU_KERNELS", "load")
    assert load_library() is not None
    assert calls() == 1
    assert not caplog.messages


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def text(path: Path) -> None:
    path.write_text("hello")


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def linked(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def writable(path: Path) -> None:
    path.chmod(0o620)


def another_library(path: Path) -> None:
    """With a checksum, but without our functions."""
    libc = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line)
    with private_folder(path.parent) as folder:
        folder.write(path.name, Path(libc).read_bytes())


@needs_compiler
@pytest.mark.parametrize("damaged", [cut, emptied, text, one_bit, linked, a_pipe, writable, another_library])
def test_a_damaged_library_is_never_used_and_compiled_again(
    damaged: Callable[[Path], None], cache: Path, calls: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    prepare_library()
    (path,) = stored(cache)
    whole = path.read_bytes()
    damaged(path)
    caplog.clear()
    assert load_library() is not None
    assert calls() == 2
    (message,) = caplog.messages
    assert message.startswith(f"compiling the CPU kernels again (some 10 s): {path} cannot be used, ")
    assert path.read_bytes() == whole
    assert not path.is_symlink()


@needs_compiler
@needs_root
def test_a_library_of_another_user_is_not_used(
    cache: Path, calls: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    prepare_library()
    (path,) = stored(cache)
    os.chown(path, OTHER, OTHER)
    prepare_library()
    assert calls() == 2
    assert path.stat().st_uid == 0
    assert f"it belongs to user {OTHER}, not to 0" in caplog.messages[-1]


def given_away(folder: Path) -> None:
    os.chown(folder, OTHER, OTHER)


@needs_compiler
@pytest.mark.parametrize(
    ("opened", "reason"),
    [
        (lambda folder: folder.chmod(0o770), "others can write it"),
        (lambda folder: folder.chmod(0o702), "others can write it"),
        pytest.param(given_away, f"it belongs to user {OTHER}, not to 0", marks=needs_root),
    ],
)
def test_a_folder_in_which_others_can_write_is_not_used_but_another(
    opened: Callable[[Path], None],
    reason: str,
    cache: Path,
    temporary: Path,
    calls: Callable[[], int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    prepare_library()
    (planted,) = stored(cache)
    opened(cache)
    caplog.clear()
    for _ in range(2):
        prepare_library()
    assert load_library() is not None
    assert calls() == 2
    assert [path.name for path in stored(temporary)] == [planted.name]
    assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
    assert caplog.messages == [
        COMPILING,
        f"the CPU kernels are kept in {temporary}, since they cannot be in {cache} ({reason})",
    ]


@needs_compiler
def test_without_any_folder_torch_computes(
    cache: Path, temporary: Path, calls: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (cache, temporary):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    prepare_library()
    assert load_library() is None
    assert calls() == 0
    assert all("cannot be kept in" in message and "torch computes" in message for message in caplog.messages)


def test_a_relative_cache_is_not_looked_for_in_the_current_folder(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", "home")
    assert [path for path in cache_folders() if path.parent.name != "tmp"] == []


HOMELESS = """
import os, sys
from swiftspec.kernels.cpu_library import load_library
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
assert load_library() is not None
"""


@needs_compiler
@needs_root
def test_a_user_without_a_name_and_a_home_has_kernels(compiled: Path, short_folder: Path) -> None:
    """As in a container that is run with any user id."""
    short_folder.chmod(0o777)
    library, program = short_folder / "kernels.so", short_folder / "compiler"
    shutil.copy(compiled, library)
    program.write_text(f'#!/bin/sh\nfor last; do :; done\ncp {library} "$last"\n')
    for path in (library, program):
        path.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")}
    variables = {**kept, "TMPDIR": str(short_folder), "CXX": str(program)}
    done = subprocess.run(
        [sys.executable, "-c", HOMELESS, str(OTHER)], env=variables, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, COMPILING + "\n")
    assert (short_folder / f"swiftspec-{OTHER}").stat().st_uid == OTHER


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


@needs_compiler
def test_nobody_else_may_write_what_is_stored(cache: Path, calls: Callable[[], int]) -> None:
    before = os.umask(0)
    try:
        prepare_library()
    finally:
        os.umask(before)
    assert calls() == 1
    for path in (cache, *stored(cache)):
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@needs_compiler
@pytest.mark.parametrize("works", [True, False])
def test_a_run_compiles_once_for_all_its_processes(
    works: bool, cache: Path, calls: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if there is nothing to load afterwards."""
    if not works:
        log = tmp_path / "calls"
        monkeypatch.setenv("CXX", compiler(tmp_path, f"open({str(log)!r}, 'a').write('.'); sys.exit('no')"))
    plan = write_plan(tmp_path)
    command = [sys.executable, "-m", "swiftspec", "run", "--plan", str(plan), "--prompt", "ab", "--max-new-tokens", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0
    assert calls() == 1
    said = [line for line in done.stderr.splitlines() if "CPU kernels" in line]
    assert said[0] == f"swiftspec: {COMPILING}"
    assert ["torch computes" in line for line in said[1:]] == ([] if works else [True])
