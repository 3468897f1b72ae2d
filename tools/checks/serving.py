"""A server under stress: overload, slow clients, clients that leave, faults of the draft.

On a quiet machine; about ten minutes for the demo pair on two cores. Criteria:

- overload: at twice the saturation for a minute, with 32 places to wait, refusals are told within 50 ms; throughput is
  at least 95 % of saturation; the 99th percentile of TTFT is that of a full queue at most; five seconds later a
  request is as fast as before;
- clients that read 10 bytes/s, or nothing, change the others' TPOT by at most 5 %;
- a request whose client leaves, queued, streamed or not, has freed its place 100 ms after the running step;
- faults of the draft under load (`--faults`): no output is lost or changed, and no stream is silent for more than twice
  the patience.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, get_args
from urllib.request import urlopen

import numpy as np

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.prompts import read_prompts
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.loadtest import SentLoad, ServerClient, drawn_prompts, encoded_prompts, send_workload
from tools.checks.criterion import Criterion, at_least, at_most
from tools.checks.workloads import candidate_of, drawn
from tools.served import Served, served

Part = Literal["overload", "slow", "leaving", "faults"]
_RUNNING, _WAITING = 8, 32
_OVERLOAD_S = 60.0
_CRAWL, _STOPPED, _AT_ONCE = 10.0, 0.0, 1e9  # bytes/s that a client reads


def check(
    plan: Path,
    prompts: Path,
    work: Annotated[Path, "folder for logs"],
    policy: str = "swiftspec",
    faults: Annotated[int, "of the draft, ten requests each"] = 100,
    only: tuple[Part, ...] = get_args(Part),
) -> Iterator[Criterion]:
    """Start a server for each part, and put it under stress."""
    work.mkdir(parents=True, exist_ok=True)
    patience_s = candidate_of(Plan.load(plan), policy).patience_s
    for part in only:
        with _server(plan, policy, prompts, log=work / f"{part}.log") as server:
            match part:
                case "overload":
                    yield from _overload(server)
                case "slow":
                    yield from _slow_clients(server)
                case "leaving":
                    yield from _leaving(server)
                case "faults":
                    yield from _faults(server, num_requests=10 * faults, patience_s=patience_s)


class _Server:
    """A server, a client of it, and requests for it."""

    def __init__(self, running: Served, prompts: Path) -> None:
        self.process, self.url = running
        self.client = ServerClient(self.url)
        self.model = self.client.model()
        self._prompts = encoded_prompts(self.client, read_prompts(prompts), model=self.model)

    def send(self, workload: Workload, *, seed: int = 0) -> SentLoad:
        prompts = drawn_prompts(workload, self._prompts, seed=seed)
        with console.progress("load") as progress:
            return send_workload(self.client, workload, prompts, model=self.model, progress=progress)

    def saturation(self) -> float:
        """Requests per second of a closed loop that keeps every place taken."""
        return self.send(_workload(f"closed:{_RUNNING}", 60)).metrics.request_throughput

    def alone_s(self) -> float:
        """Median seconds of a request alone."""
        return self.send(_workload("closed:1", 10)).metrics.e2el_s.p50

    def metric(self, name: str) -> float:
        with urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _server(plan: Path, policy: str, prompts: Path, *, log: Path) -> Iterator[_Server]:
    limits = ("--set", f"max_running={_RUNNING},max_waiting={_WAITING}")
    options = (*limits, "--set", "send_timeout_s=3", "--set", "max_restarts=1000")
    with served(plan, "--policy", policy, *options, log=log) as running:
        yield _Server(running, prompts)


def _workload(arrivals: str, num_requests: int) -> Workload:
    return drawn(arrivals, num_requests, prompt_tokens="fixed:48", output_tokens="fixed:64")


def _overload(server: _Server) -> Iterator[Criterion]:
    before_s, rate = server.alone_s(), server.saturation()
    memory = server.resident_bytes()
    sent = server.send(_workload(f"poisson:{2 * rate}", round(2 * rate * _OVERLOAD_S)))
    told_s = [answer.answered_s - answer.sent_s for answer in sent.answers if answer.status == 429]
    bound_s = (_WAITING + _RUNNING) / rate
    time.sleep(5.0)
    after_s = server.alone_s()
    console.say(
        f"overload at {2 * rate:.1f} requests/s: {sent.metrics.completed} answered, {sent.metrics.refused} refused"
    )
    yield at_most("failed requests", sum(sent.failures.values()), 0)
    yield at_most("refused within, p99", 1e3 * float(np.percentile(told_s, 99)), 50, "ms")
    yield at_least("throughput over saturation", sent.metrics.request_throughput / rate, 0.95)
    yield at_most("p99 of TTFT over that of a full queue", sent.metrics.ttft_s.p99 / bound_s, 1.0)
    yield at_most("growth of the server's memory", (server.resident_bytes() - memory) / 1e6, 20, "MB")
    yield at_most("a request alone, after over before", after_s / before_s, 1.1)


def _slow_clients(server: _Server) -> Iterator[Criterion]:
    """Four ordinary clients beside four that read slowly or not at all, and beside four more; alternated."""
    ratios = []
    for _ in range(4):
        quiet = _tpot_beside(server, [])
        ratios.append(_tpot_beside(server, [_CRAWL, _CRAWL, _STOPPED, _STOPPED]) / quiet)
    yield at_most("longer TPOT beside slow and stopped clients", 100 * (median(ratios) - 1), 5, "%")
    yield at_most("requests left behind", _left_within(server, 10.0), 0)


def _tpot_beside(server: _Server, speeds: Sequence[float]) -> float:
    """TPOT of four clients beside four others, which read so many bytes a second, or, if there are none, everything."""
    stop = threading.Event()
    slow = [threading.Thread(target=_read_slowly, args=(server, speed, stop)) for speed in speeds or [_AT_ONCE] * 4]
    for thread in slow:
        thread.start()
    tpot_s = server.send(_workload("closed:4", 24)).metrics.tpot_s.mean
    stop.set()
    for thread in slow:
        thread.join()
    return tpot_s


def _read_slowly(server: _Server, bytes_per_s: float, stop: threading.Event) -> None:
    while not stop.is_set():
        with _asked(server, stream=True) as connection, suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(0.5)
            while not stop.is_set():
                time.sleep(1 / bytes_per_s if bytes_per_s else 0.1)
                if not bytes_per_s:
                    continue
                with suppress(TimeoutError):
                    piece = connection.recv(1 if bytes_per_s == _CRAWL else 65536)
                    if not piece or b"[DONE]" in piece:
                        break


def _asked(server: _Server, *, stream: bool) -> socket.socket:
    """A connection that has asked for a long completion."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    body = {"prompt": "def main():", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": stream}
    content = json.dumps(body)
    head = ("POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json")
    connection = socket.create_connection((host, int(port)))
    connection.sendall("\r\n".join([*head, f"content-length: {len(content)}", "", content]).encode())
    return connection


def _left_within(server: _Server, seconds: float) -> float:
    """Requests that still run or wait after some time."""
    until_s = time.monotonic() + seconds
    while left := server.metric("swiftspec:num_requests_running") + server.metric("swiftspec:num_requests_waiting"):
        if time.monotonic() > until_s:
            break
        time.sleep(0.02)
    return left


def _leaving(server: _Server) -> Iterator[Criterion]:
    """Clients that leave: the time until nothing runs any more."""
    for name, streams, number in (("streamed", True, 1), ("not streamed", False, 1), ("queued", True, _RUNNING + 4)):
        taken_s = []
        for _ in range(20):
            clients = [_asked(server, stream=streams) for _ in range(number)]
            time.sleep(0.15)
            start_s = time.monotonic()
            for client in clients:
                client.close()
            left = _left_within(server, 5.0)
            taken_s.append(math.inf if left else time.monotonic() - start_s)
        # The running step, the question over HTTP, and the 20 ms between two of them are part of it.
        yield at_most(f"freed after its client left, {name}, median", 1e3 * median(taken_s), 100, "ms")
    console.say(f"counted as cancelled: {server.metric('swiftspec:request_cancelled_total'):.0f}")


def _faults(server: _Server, *, num_requests: int, patience_s: float) -> Iterator[Criterion]:
    """Requests in a closed loop, while the draft is killed or frozen again and again."""
    workload = _workload(f"closed:{_RUNNING}", num_requests)
    chance, stop, num_faults = random.Random(0), threading.Event(), 0

    def harm() -> None:
        nonlocal num_faults
        while not stop.wait(chance.uniform(0.2, 1.5)):
            pids = _workers(server.process.pid)
            if len(pids) < 2:
                continue
            with suppress(ProcessLookupError):
                _harm(pids[-1], chance)
                num_faults += 1

    expected = server.send(workload)
    thread = threading.Thread(target=harm)
    thread.start()
    sent = server.send(workload)
    stop.set()
    thread.join()
    most_silent_s = 2 * patience_s * (1 + 0.25 * (_RUNNING - 1))
    silences = [b - a for answer in sent.answers for a, b in zip(answer.chunks_s, answer.chunks_s[1:], strict=False)]
    changed = sum(a.text != b.text for a, b in zip(expected.answers, sent.answers, strict=True))
    console.say(f"{len(sent.answers)} requests, {num_faults} faults of the draft")
    yield at_most("requests that failed", sum(sent.failures.values()) + sent.metrics.refused, 0)
    yield at_most("outputs that changed", changed, 0)
    yield at_most("longest silence over twice the patience", max(silences) / most_silent_s, 1)


def _harm(pid: int, chance: random.Random) -> None:
    """Kill a process, or freeze it for a moment."""
    if chance.random() < 0.5:
        os.kill(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(chance.uniform(0.1, 1.5))
        os.kill(pid, signal.SIGCONT)


def _workers(pid: int) -> list[int]:
    """The engine's processes, the target's first: children of the one process that forks them."""
    found: list[int] = []
    for fork_server in _children(pid):
        found += _children(fork_server)
    return found


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return sorted(int(child) for task in tasks for child in task.read_text().split())
    return []
