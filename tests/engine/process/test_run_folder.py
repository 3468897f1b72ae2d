import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from swiftspec.engine.process import run_folder as module
from swiftspec.engine.process.run_folder import run_folder
from tests.cli.test_faults import can_mount

KILLED = """
import os, signal
from swiftspec.engine.process.run_folder import run_folder
with run_folder() as folder:
    (folder / "channel-0").touch()
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def base(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The TMPDIR of this process and of those that it starts."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))
    monkeypatch.setenv("TMPDIR", str(short_folder))
    return short_folder


def test_it_is_the_users_alone_and_removed_in_the_end(base: Path) -> None:
    with run_folder() as folder:
        assert folder.parent == base
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert list(base.iterdir()) == []


def test_a_path_too_long_for_a_socket_is_not_used(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = base / ("long-" * 26)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with run_folder() as folder:
        assert folder.parent == Path("/tmp")
        assert len(os.fsencode(folder / "channel-999")) <= 107
    assert not folder.exists()


def test_without_any_place_it_is_one_sentence(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FALLBACKS", ("/nowhere/" + "long" * 40,))
    monkeypatch.setattr(tempfile, "tempdir", "/does-not-exist")
    with (
        pytest.raises(
            OSError, match=r"in /does-not-exist \(No such file or directory\), /nowhere.*too long.*set TMPDIR"
        ),
        run_folder(),
    ):
        pass
    assert list(base.iterdir()) == []


def test_what_a_killed_launcher_left_is_swept_by_the_next(base: Path) -> None:
    left = Path(
        subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False).stdout.strip()
    )
    assert (left / "channel-0").exists()
    with run_folder() as folder:
        assert not left.exists()
        assert folder.exists()


def test_a_launcher_killed_before_it_had_locked_its_folder_leaves_none_either(base: Path) -> None:
    (base / "swiftspec-run-12345678").mkdir()
    with run_folder() as folder:
        assert list(base.iterdir()) == [folder]


def test_folders_in_use_and_folders_of_others_are_left_alone(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "swiftspec-run-no-lock").mkdir()
    (base / "swiftspec-run-no-lock" / "file").touch()
    (base / "another").mkdir()
    shutil.copytree(base / "another", base / "swiftspec-run-foreign")
    (base / "swiftspec-run-foreign" / "owner.lock").touch()
    (base / "swiftspec-run-link").symlink_to(base / "another")
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with run_folder() as first:
        monkeypatch.undo()
        monkeypatch.setattr(tempfile, "tempdir", str(base))
        shutil.rmtree(base / "swiftspec-run-foreign")  # which is there, since it was another's
        with run_folder() as second:
            assert first.exists()
            assert second.exists()
    assert {path.name for path in base.iterdir()} == {"swiftspec-run-no-lock", "another", "swiftspec-run-link"}


@pytest.mark.skipif(not can_mount(), reason="a file system without inodes needs the right to mount one")
def test_a_place_without_inodes_is_not_used(base: Path) -> None:
    """Of three: the mount's own root, the folder and its lock leave none for a socket."""
    program = "from swiftspec.engine.process.run_folder import run_folder\nwith run_folder() as folder: print(folder)"
    script = f"mount -t tmpfs -o nr_inodes=3 tmpfs {base} && TMPDIR={base} exec {sys.executable} -c '{program}'"
    run = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()).parent == Path("/tmp")
