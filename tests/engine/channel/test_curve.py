import re
import threading
from pathlib import Path

import pytest
import zmq

from swiftspec.engine.channel.curve import Curve, read_secret, secure, write_secret

OURS, THEIRS = Curve.derived(b"o" * 32), Curve.derived(b"t" * 32)


def test_a_written_secret_is_read_and_nobody_else_may(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(rb"swiftspec-[0-9a-f]{64}-[0-9a-f]{8}", read_secret(path))
    with pytest.raises(ValueError, match=r"secret: cannot be written \(File exists\)"):
        write_secret(path)


@pytest.mark.parametrize(
    ("mode", "content", "sentence"),
    [
        (0o640, b"x" * 64, "its mode is 640, so others may read the secret; expected 600"),
        (0o604, b"x" * 64, "its mode is 604"),
        (0o600, b"a" * 36, "holds no secret that `swiftspec run --new-secret` made; make one"),
        (0o600, b"0123456789abcdef" * 4, "holds no secret"),
        (0o600, b"swiftspec-" + b"a" * 64 + b"-00000000", "holds no secret"),
        (0o600, b"", "holds no secret"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, mode: int, content: bytes, sentence: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ValueError, match=sentence):
        read_secret(path)


def test_a_secret_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere: cannot be read \(No such file or directory\)"):
        read_secret(tmp_path / "nowhere")


def test_keys_depend_on_the_secret_alone_and_are_not_shown() -> None:
    assert Curve.derived(b"o" * 32) == OURS
    keys = {OURS.server_key, OURS.client_key, THEIRS.server_key, THEIRS.client_key}
    assert len(keys) == 4
    assert not any(key.decode() in repr(OURS) for key in keys)


def gets_through(server: Curve | None, client: Curve | None) -> bool:
    """Whether a connecting PAIR socket's message arrives at a bound one."""
    contexts = zmq.Context(), zmq.Context()
    bound, connected = (context.socket(zmq.PAIR) for context in contexts)
    try:
        for socket, curve in ((bound, server), (connected, client)):
            socket.setsockopt(zmq.LINGER, 0)
            if curve:
                secure(socket, curve, server=socket is bound)
        port = bound.bind_to_random_port("tcp://127.0.0.1")
        connected.connect(f"tcp://127.0.0.1:{port}")
        connected.send(b"here I am")
        return bool(bound.poll(5000 if server == client else 400))
    finally:
        for socket, context in ((bound, contexts[0]), (connected, contexts[1])):
            socket.close()
            context.term()


@pytest.mark.parametrize("curve", [None, OURS], ids=["loopback", "secret"])
def test_who_has_the_same_secret_gets_through(curve: Curve | None) -> None:
    assert gets_through(curve, curve)


@pytest.mark.parametrize(
    ("server", "client"),
    [
        (OURS, THEIRS),
        (OURS, Curve(server_key=OURS.server_key, client_key=THEIRS.client_key)),
        (OURS, Curve(server_key=THEIRS.server_key, client_key=OURS.client_key)),
        (OURS, None),
        (None, OURS),
    ],
    ids=["another secret", "another key of its own", "another server", "no curve at all", "server without"],
)
def test_anyone_else_is_refused(server: Curve | None, client: Curve | None) -> None:
    assert not gets_through(server, client)


def test_the_gate_ends_with_its_context() -> None:
    before = threading.active_count()
    gets_through(OURS, OURS)
    for thread in threading.enumerate():
        if thread.name == "curve":
            thread.join(timeout=5)
    assert threading.active_count() == before
