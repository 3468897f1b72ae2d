"""A fuzzer in the draft's place at the socket. The target is the engine's, in its own process."""

import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import zmq

from swiftspec.engine.channel.sequencing import Header
from swiftspec.engine.channel.zmq_channel import Channel, encode
from swiftspec.engine.driver.group_driver import GroupDriver
from swiftspec.engine.driver.request_part import RequestPart
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.document import ModelRef
from swiftspec.policies import Request, make_policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import CatchUp, Message, Probe, ProbeReply, Role, Stop, Subtree, Verdict
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.recovery import RecoveringTarget
from swiftspec.profiler.helper_processes import forkserver
from swiftspec.scheduler.batching import BatchLimits
from tests.engine.channel.ends import End, refusals
from tests.engine.pairs import VOCAB_SIZE, write_pair
from tools.run_alone import raise_error

REQUEST = Request(prompt=(5, 9, 2, 33, 71, 8), max_new_tokens=120)
PATIENCE_S = 0.05
POLICIES = ("swiftspec", "amusd", "pearl", "mirror")
TOP = 2**32 - 1


class Draft:
    """The draft's end of the channel, as an inbox."""

    def __init__(self, channel: Channel) -> None:
        self.pump = channel.pump
        self._channel = channel

    def wait(self, until_s: float | None) -> None:
        left_s = 0.05 if until_s is None else until_s - time.perf_counter()
        self._channel.socket.poll(max(0, round(1e3 * left_s)), zmq.POLLIN)


def serve(connection: Connection, checkpoint: str, address: str) -> None:
    """The target's process: a policy's name comes, and whether to begin alone; what it said and heard goes."""
    torch.set_num_threads(1)
    model = ModelRunner.load(ModelRef(model=checkpoint, dtype="float32"), max_context=256, tree_slots=64)
    models = {Role.TARGET: model}
    channel = Channel(address, bind=True, leads=True, vocab_size=model.vocab_size)
    driver = GroupDriver(models=models, limits=BatchLimits(), inbox=Draft(channel), ended=raise_error)
    connection.send(None)
    for number, (name, alone) in enumerate(iter(connection.recv, None)):
        output: list[int] = []
        messages = channel.open(number)
        refused = refusals(messages)
        part = RequestPart(role=Role.TARGET, models=models, peers=[messages], commit=output.extend, sampler=Sampler())
        recovery = RecoveringTarget(
            make_policy("swiftspec" if name == "autoregressive" else name),
            REQUEST,
            fallback=PromptLookup(),
            patience_s=lambda: PATIENCE_S,
            alone=alone,
        )
        program = Autoregressive().programs(REQUEST)[Role.TARGET] if name == "autoregressive" else recovery.run()
        driver.add(number, program, part, is_elastic=False)
        with torch.inference_mode():
            while len(driver):
                driver.advance()
                driver.step()
        channel.close(number)
        connection.send((tuple(output), len(refused), recovery.num_losses))


class Target:
    """Its process from outside."""

    def __init__(self, directory: Path) -> None:
        checkpoint, _ = write_pair(directory, architecture="llama")
        self.path = directory / "channel"
        self.address = f"ipc://{self.path}"
        self._connection, theirs = Pipe()
        self._process = forkserver().Process(target=serve, args=(theirs, str(checkpoint), self.address))
        self._process.start()
        theirs.close()
        assert self._connection.poll(120)
        self._connection.recv()
        self.num_requests = 0

    def close(self) -> None:
        self._connection.send(None)
        self._process.join(10)
        assert self._process.exitcode == 0

    def says(self, name: str, *, alone: bool = False) -> tuple[tuple[int, ...], int, int]:
        """Its output, how many messages it has refused so far, how often it lost its draft. EOFError if it crashed."""
        self._connection.send((name, alone))
        assert self._connection.poll(120), "it goes on"
        output, num_refused, num_losses = self._connection.recv()
        self.num_requests += 1
        return output, num_refused, num_losses


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = Target(tmp_path_factory.mktemp("fuzzed"))
    yield target
    target.close()


@pytest.fixture(scope="module")
def expected(target: Target) -> tuple[int, ...]:
    return target.says("autoregressive")[0]


def random_message(rng: random.Random) -> Message:
    tokens = tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 40)))
    position = rng.randint(0, 140)
    parents = (-1, *(rng.randrange(index) for index in range(1, len(tokens))))
    rooted = Subtree(len(REQUEST.prompt) - 1, REQUEST.prompt[-1:] + tokens[1:], parents)
    messages: list[Message] = [
        rooted,
        Subtree(position, tokens, parents),
        Subtree(rooted.position, rooted.tokens[:2], (-1, 0)[: len(tokens)]),
        Verdict(tokens),
        ProbeReply(position),
        CatchUp(position, tokens, start=True),
        Probe(),
        Stop(),
    ]
    return rng.choice(messages)


Noise = Callable[[random.Random, int], bytes]  # during a request of that number
Peer = Callable[[Target, threading.Event], None]


def any_bytes(rng: random.Random, _: int) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 12, 13, 14, 17, 100, 5000)))


def truncated(rng: random.Random, request: int) -> bytes:
    frame = encode(random_message(rng), Header(request, rng.randint(0, 3), rng.randint(0, 5)))
    return frame[: rng.randrange(len(frame))]


def oversized(rng: random.Random, _: int) -> bytes:
    return bytes(rng.choice((40_000, 4_000_000)))


def wrong_schema(rng: random.Random, request: int) -> bytes:
    count = rng.randint(0, 9)
    numbers = [rng.choice((-(2**31), -1, 0, 1, VOCAB_SIZE, 2**31 - 1)) for _ in range(count)]
    head = struct.pack("<IIIB", request, rng.choice((0, 1, TOP)), rng.choice((0, 1, TOP)), rng.randint(0, 9))
    return head + struct.pack(f"<{count}i", *numbers)


def frames_of(noise: Noise, target: Target, done: threading.Event) -> None:
    rng = random.Random(3)
    with zmq.Context() as context:
        while not done.is_set():
            with context.socket(zmq.DEALER) as stranger:
                stranger.setsockopt(zmq.LINGER, 0)
                stranger.connect(target.address)
                for _ in range(50):
                    if stranger.poll(20, zmq.POLLOUT) and not done.is_set():
                        stranger.send(noise(rng, target.num_requests), zmq.NOBLOCK)
                time.sleep(0.01)


def raw_bytes(target: Target, done: threading.Event) -> None:
    rng = random.Random(4)
    starts = (b"", b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48), b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00")
    while not done.is_set():
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(os.fspath(target.path))
            with suppress(BrokenPipeError):  # it may hang up
                stranger.sendall(rng.choice(starts) + rng.randbytes(rng.randint(0, 3000)))
        time.sleep(0.002)


def impostor(target: Target, done: threading.Event) -> None:
    """Every number is right, the handshake too; then nonsense."""
    rng = random.Random(5)
    with End(target.address, target=False, vocab_size=VOCAB_SIZE) as channel:
        request = -1
        try:
            while not done.is_set():
                if request != target.num_requests:
                    request = target.num_requests
                    channel.begin(request)
                message = channel.receive(0.02)
                if isinstance(message, Probe):
                    channel.send(ProbeReply(len(REQUEST.prompt)))
                elif isinstance(message, CatchUp) and not message.start:
                    channel.send(ProbeReply(message.position + len(message.tokens)))
                else:
                    for _ in range(rng.randint(1, 3)):
                        channel.send(random_message(rng))
        except InterruptedError:
            pass


NOISES = {noise.__name__: noise for noise in (any_bytes, truncated, oversized, wrong_schema)}
PEERS: dict[str, Peer] = {
    **{name: partial(frames_of, noise) for name, noise in NOISES.items()},
    "raw_bytes": raw_bytes,
    "impostor": impostor,
}


@pytest.mark.parametrize("peer", PEERS)
@pytest.mark.parametrize("name", POLICIES)
def test_no_peer_changes_what_the_target_says(name: str, peer: str, target: Target, expected: tuple[int, ...]) -> None:
    done = threading.Event()
    thread = threading.Thread(target=PEERS[peer], args=(target, done))
    thread.start()
    num_refused = num_losses = 0
    try:
        for _ in range(9):  # the request is short: it may be over before the peer is connected
            # It asks for a draft at once, and gets an answer from an impostor.
            output, num_refused, losses = target.says(name, alone=peer == "impostor")
            assert output == expected
            num_losses += losses
            # ZeroMQ itself refuses the others.
            if num_losses and (num_refused or peer not in NOISES or peer == "oversized"):
                return
    finally:
        done.set()
        thread.join()
    raise AssertionError(f"{num_refused} messages refused and {num_losses} losses: the target heard nothing")
