import os
import pty
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swiftspec.files.writing import locate, write_output


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_write_replaces_the_whole_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"old and long")
    write_output(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["table.json"]


def test_a_name_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_output(path, b"new")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path, mask: int, expected: int) -> None:
    with umask(mask):
        write_output(tmp_path / "f", b"new")
    assert mode(tmp_path / "f") == expected


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o755])
def test_an_existing_file_keeps_its_permissions(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    path.chmod(kept)
    with umask(0o022):
        write_output(path, b"new")
    assert (mode(path), path.read_bytes()) == (kept, b"new")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_an_existing_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    os.chown(path, 12345, 54321)
    write_output(path, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "real.json").write_bytes(b"old")
    (tmp_path / "link.json").symlink_to("folder/real.json")
    (tmp_path / "link to link").symlink_to("link.json")
    write_output(tmp_path / "link to link", b"new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "folder" / "real.json").read_bytes() == b"new"
    assert os.listdir(tmp_path / "folder") == ["real.json"]


def test_the_target_of_a_dangling_link_is_made(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("absent")
    write_output(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "absent").read_bytes() == b"new"


def test_the_partial_file_cannot_be_foreseen_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    real_open = os.open

    def watched(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            assert flags & os.O_EXCL  # with which no link is followed
            names.append(os.fspath(path))
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    write_output(tmp_path / "f", b"1")
    write_output(tmp_path / "f", b"2")
    assert len(set(names)) == 2
    assert {os.path.dirname(name) for name in names} == {str(tmp_path)}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """The limit on a file's size is as good as a full disk."""
    path = tmp_path / "table.json"
    path.write_bytes(b"old")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ValueError, match=r"table.json: cannot be written \(File too large\)"):
            write_output(path, bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["table.json"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_output(path, b"new content")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["table.json"]


def test_unwritable_places_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop a").symlink_to("loop b")
    (tmp_path / "loop b").symlink_to("loop a")
    places = ("file/x.json", "absent/x.json", "folder", "loop a", "/", "/dev/fd/9999", "/dev/fd/²", f"/dev/fd/{10**20}")
    for path in (tmp_path / place for place in places):
        with pytest.raises(ValueError, match=f"{path}: cannot be written"):
            write_output(path, b"x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "loop a", "loop b"]


def test_a_private_file_is_new_and_for_this_user_alone(tmp_path: Path) -> None:
    with umask(0):
        write_output(tmp_path / "secret", b"s", private=True)
    assert mode(tmp_path / "secret") == 0o600
    with pytest.raises(ValueError, match=r"secret: cannot be written \(File exists\)"):
        write_output(tmp_path / "secret", b"other", private=True)
    assert (tmp_path / "secret").read_bytes() == b"s"


def test_a_pipe_with_a_name_is_written_through(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_output(tmp_path / "link", content := b"x" * 300_000)  # more than a pipe holds
    reader.join(timeout=30)
    assert read == [content]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_terminal_is_written_through(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    name = Path(os.ttyname(follower))
    write_output(name, b"text")
    assert os.read(leader, 10) == b"text"
    assert stat.S_ISCHR(name.stat().st_mode)
    os.close(leader)
    os.close(follower)


@pytest.fixture(params=["null", "full"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A device of this test's own, which may be spoilt."""
    path = tmp_path / str(request.param)
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, {"null": 3, "full": 7}[request.param]))
        path.open("wb").close()
    except PermissionError:
        pytest.skip("devices may not be made here")
    return path


def test_a_device_stays_one(device: Path, tmp_path: Path) -> None:
    before = device.stat()
    (tmp_path / "link").symlink_to(device)
    for path in (device, tmp_path / "link"):
        if device.name == "full":
            with pytest.raises(ValueError, match=rf"{path}: cannot be written \(No space left on device\)"):
                write_output(path, b"x")
        else:
            write_output(path, b"x")
    after = device.stat()
    assert (after.st_mode, after.st_rdev, after.st_ino) == (before.st_mode, before.st_rdev, before.st_ino)
    assert (tmp_path / "link").is_symlink()


def test_an_open_descriptor_is_written_to_and_not_what_lies_behind_it(tmp_path: Path) -> None:
    """The file that the descriptor refers to keeps its earlier content."""
    with (tmp_path / "file").open("wb") as file:
        file.write(b"before ")
        file.flush()
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{file.fileno()}")
        write_output(Path(f"/dev/fd/{file.fileno()}"), b"first ")
        write_output(tmp_path / "link", b"second")
    assert (tmp_path / "file").read_bytes() == b"before first second"
    assert (tmp_path / "link").is_symlink()


def test_a_descriptor_for_reading_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with (tmp_path / "file").open("rb") as file:
        path = Path(f"/dev/fd/{file.fileno()}")
        with pytest.raises(ValueError, match=rf"{path}: cannot be written \(open for reading only\)"):
            write_output(path, b"x")


WRITES = "import sys; from pathlib import Path; from swiftspec.files.writing import write_output; {}"


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_stdout_by_any_name_keeps_the_order_of_what_is_written(tmp_path: Path, name: str) -> None:
    code = WRITES.format(f"sys.stdout.write('a'); write_output(Path({name!r}), b'b'); sys.stdout.write('c')")
    with (tmp_path / "out").open("wb") as out:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, cwd=tmp_path, env=environment)
    assert (tmp_path / "out").read_bytes() == b"abc"
    assert os.listdir(tmp_path) == ["out"]


def test_checking_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    for name in before:
        locate(tmp_path / name).check()  # the pipe without waiting for a reader
    locate(tmp_path / "new").check()
    assert (sorted(os.listdir(tmp_path)), (tmp_path / "file").read_bytes()) == (before, b"kept")


@pytest.mark.parametrize(
    ("first", "second", "are_same"),
    [
        ("new", "folder/../new", True),
        ("file", "hard link", True),
        ("file", "link", True),
        ("file", "new", False),
        ("-", "/dev/stdout", True),
        ("-", "/dev/null", False),
    ],
)
def test_the_same_destination_by_two_names(tmp_path: Path, first: str, second: str, are_same: bool) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "hard link").hardlink_to(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    names = [Path(name) if name == "-" else tmp_path / name for name in (first, second)]
    identities = [locate(name).identity for name in names]
    assert (identities[0] == identities[1]) == are_same
