"""Secrets that keep strangers out between nodes, and the ZeroMQ CURVE keys derived from them.

A secret is a file written by `swiftspec run --new-secret`: 256 random bits, and a checksum that identifies it. A
secret that a person made up would not do: whoever records a connection can test guesses.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import zmq
from zmq.utils import z85

from swiftspec.files.writing import write_output

MAKE_ONE = "`swiftspec run --new-secret swiftspec.secret`"
FRAMING_BYTES = 256  # the most that encryption adds to a message
_SECRET_BYTES = 32  # the length of a CURVE key
_MOST_BYTES = 4096
_FORMAT = re.compile(rb"swiftspec-([0-9a-f]{64})-([0-9a-f]{8})")
_ZAP = "inproc://zeromq.zap.01"  # where libzmq asks who may connect, see ZeroMQ RFC 27


def write_secret(path: Path) -> None:
    """Write a new random secret that only this user may read. ValueError if the file exists."""
    bits = secrets.token_hex(_SECRET_BYTES)
    write_output(path, f"swiftspec-{bits}-{zlib.crc32(bits.encode()):08x}\n".encode(), private=True)


def read_secret(path: Path) -> bytes:
    """The secret in a file. ValueError: if others may read it, or if it does not hold what `write_secret` writes."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(_MOST_BYTES).strip()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if mode & 0o077:
        raise ValueError(f"{path}: its mode is {mode:o}, so others may read the secret; expected 600")
    parts = _FORMAT.fullmatch(secret)
    if parts is None or zlib.crc32(parts[1]) != int(parts[2], 16):
        raise ValueError(f"{path}: holds no secret that `swiftspec run --new-secret` made; make one with {MAKE_ONE}")
    return secret


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Secret keys of the end that binds and of the ends that connect (Z85, 40 characters)."""

    server_key: bytes = field(repr=False)
    client_key: bytes = field(repr=False)

    @classmethod
    def derived(cls, secret: bytes) -> "Curve":
        """Keys that only holders of the secret can know; any 32 bytes are a key."""
        if not zmq.has("curve"):
            raise ValueError("this build of libzmq has no CURVE, which several nodes need; expected one with libsodium")
        return cls(server_key=_key(secret, b"server"), client_key=_key(secret, b"client"))


def _key(secret: bytes, end: bytes) -> bytes:
    return z85.encode(hmac.digest(secret, b"swiftspec curve " + end, hashlib.sha256))


def secure(socket: "zmq.Socket[bytes]", curve: Curve, *, server: bool) -> None:
    """Encrypt a socket and reject peers without the secret; call before it binds (server) or connects.

    A thread of the server's context checks keys. Without it nobody is admitted.
    """
    if server:
        _start_gate(socket.context, curve)
        socket.setsockopt(zmq.ZAP_DOMAIN, b"swiftspec")
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, curve.server_key)
    else:
        socket.setsockopt(zmq.CURVE_SERVERKEY, zmq.curve_public(curve.server_key))
        socket.setsockopt(zmq.CURVE_PUBLICKEY, zmq.curve_public(curve.client_key))
        socket.setsockopt(zmq.CURVE_SECRETKEY, curve.client_key)


def _start_gate(context: "zmq.Context[zmq.Socket[bytes]]", curve: Curve) -> None:
    gate = context.socket(zmq.REP)
    gate.setsockopt(zmq.LINGER, 0)
    try:
        gate.bind(_ZAP)
    except zmq.ZMQError:  # this context has one already
        gate.close()
        return
    Thread(target=_keep_gate, args=(gate, zmq.curve_public(curve.client_key)), name="curve", daemon=True).start()


def _keep_gate(gate: "zmq.Socket[bytes]", client_public: bytes) -> None:
    """Answer libzmq's questions (RFC 27) until the context is terminated."""
    known = z85.decode(client_public)
    with suppress(zmq.ContextTerminated), gate:
        while True:
            version, request, *rest = gate.recv_multipart()
            mechanism, keys = (rest[3], rest[4:]) if len(rest) > 3 else (b"", [])
            is_known = mechanism == b"CURVE" and len(keys) == 1 and hmac.compare_digest(keys[0], known)
            answer = (b"200", b"OK") if is_known else (b"400", b"unknown key")
            gate.send_multipart([version, request, *answer, b"", b""])
