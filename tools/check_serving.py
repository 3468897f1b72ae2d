"""Check a server under stress: `python -m tools.check_serving --plan PLAN --prompts F --work DIR`.

On a quiet machine; about ten minutes for the demo pair on two cores. Exit code 1 if a criterion is missed:

- overload: at twice the saturation for a minute, with 32 places to wait, refusals are told within 50 ms; throughput is
  at least 95 % of saturation; the 99th percentile of TTFT is that of a full queue at most; five seconds later a
  request is as fast as before;
- clients that read 10 bytes/s, or nothing, change the others' TPOT by at most 5 %;
- a request whose client leaves, queued, streamed or not, has freed its place 100 ms after the running step;
- faults of the draft under load (`--faults`): no output is lost or changed, and no stream is silent for more than twice
  the patience.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from urllib.request import urlopen

import numpy as np

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.prompts import read_prompts
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.loadtest import SentLoad, ServerClient, drawn_prompts, encoded_prompts, send_workload
from swiftspec.workload import make_workload
from tools.served import Served, served

__all__ = ["main"]

_RUNNING, _WAITING = 8, 32
_PROMPT_TOKENS, _OUTPUT_TOKENS = 48, 64
_OVERLOAD_S = 60.0
POSTS = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for logs")
    parser.add_argument("--policy", default="swiftspec", help="(default: %(default)s)")
    parser.add_argument(
        "--faults", type=int, default=100, help="of the draft, ten requests each (default: %(default)s)"
    )
    parser.add_argument("--only", help="one of overload, slow, leaving, faults")
    chosen = parser.parse_args(arguments)
    chosen.work.mkdir(parents=True, exist_ok=True)
    checks: dict[str, Callable[[_Server], Iterator[bool]]] = {
        "overload": _overload,
        "slow": _slow_clients,
        "leaving": _leaving,
        "faults": lambda server: _faults(server, chosen),
    }
    held = True
    for name, check in checks.items():
        if chosen.only in (None, name):
            with _server(chosen, name) as server:
                held &= all([*check(server)])
    return 0 if held else 1


class _Server:
    """A server, a client of it, and requests for it."""

    def __init__(self, running: Served, prompts: Path) -> None:
        self.process, self.url = running
        self.client = ServerClient(self.url)
        self.model = self.client.model()
        self._prompts = encoded_prompts(self.client, read_prompts(prompts), model=self.model)

    def send(self, workload: Workload, *, seed: int = 0) -> SentLoad:
        drawn = drawn_prompts(workload, self._prompts, seed=seed)
        with console.progress("load") as progress:
            return send_workload(self.client, workload, drawn, model=self.model, progress=progress)

    def saturation(self) -> float:
        """Requests per second of a closed loop that keeps every place taken."""
        return self.send(
            _workload(Arrivals(process=Process.CLOSED, num_clients=_RUNNING), 60)
        ).metrics.request_throughput

    def alone_s(self) -> float:
        """Median seconds of a request alone."""
        return self.send(_workload(Arrivals(process=Process.CLOSED, num_clients=1), 10)).metrics.e2el_s.p50

    def metric(self, name: str) -> float:
        with urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _server(chosen: argparse.Namespace, name: str) -> Iterator[_Server]:
    limits = ("--set", f"max_running={_RUNNING},max_waiting={_WAITING}")
    options = (*limits, "--set", "send_timeout_s=3", "--set", "max_restarts=1000")
    with served(chosen.plan, "--policy", chosen.policy, *options, log=chosen.work / f"{name}.log") as running:
        yield _Server(running, chosen.prompts)


def _workload(arrivals: Arrivals, num_requests: int, *, output_tokens: int = _OUTPUT_TOKENS) -> Workload:
    return make_workload(
        arrivals,
        num_requests=num_requests,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=_PROMPT_TOKENS),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=output_tokens),
    )


def _overload(server: _Server) -> Iterator[bool]:
    before_s, rate = server.alone_s(), server.saturation()
    memory = server.resident_bytes()
    overload = Arrivals(process=Process.POISSON, rate=2 * rate)
    sent = server.send(_workload(overload, round(2 * rate * _OVERLOAD_S)))
    told_s = [answer.answered_s - answer.sent_s for answer in sent.answers if answer.status == 429]
    bound_s = (_WAITING + _RUNNING) / rate
    time.sleep(5.0)
    after_s = server.alone_s()
    console.say(
        f"overload at {2 * rate:.1f} requests/s: {sent.metrics.completed} answered, {sent.metrics.refused} refused"
    )
    yield _says("failed requests", sum(sent.failures.values()), 0)
    yield _says("refused within, p99, ms", 1e3 * float(np.percentile(told_s, 99)), 50.0)
    yield _says("saturation over throughput", rate / sent.metrics.request_throughput, 1 / 0.95)
    yield _says("p99 of TTFT over that of a full queue", sent.metrics.ttft_s.p99 / bound_s, 1.0)
    yield _says("server's memory, MB more", (server.resident_bytes() - memory) / 1e6, 20.0)
    yield _says("a request alone, after over before", after_s / before_s, 1.1)


def _slow_clients(server: _Server) -> Iterator[bool]:
    """Four ordinary clients beside four that read slowly or not at all, and beside four more; alternated."""
    ratios = []
    for _ in range(4):
        quiet = _tpot_beside(server, [])
        ratios.append(_tpot_beside(server, [10.0, 10.0, 0.0, 0.0]) / quiet)
    yield _says("TPOT beside slow and stopped clients, relative", median(ratios) - 1, 0.05)
    yield _says("requests left behind", _left_within(server, 10.0), 0)


def _tpot_beside(server: _Server, speeds: Sequence[float]) -> float:
    """TPOT of four clients beside four others, which read so many bytes a second, or, if there are none, everything."""
    stop = threading.Event()
    slow = [threading.Thread(target=_read_slowly, args=(server, speed, stop)) for speed in speeds or [1e9] * 4]
    for thread in slow:
        thread.start()
    tpot_s = server.send(_workload(Arrivals(process=Process.CLOSED, num_clients=4), 24)).metrics.tpot_s.mean
    stop.set()
    for thread in slow:
        thread.join()
    return tpot_s


def _read_slowly(server: _Server, bytes_per_s: float, stop: threading.Event) -> None:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    body = {"prompt": "def main():", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
    while not stop.is_set():
        with socket.create_connection((host, int(port))) as connection, suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            content = json.dumps(body).encode()
            head = f"{POSTS}content-length: {len(content)}\r\n\r\n"
            connection.sendall(head.encode() + content)
            connection.settimeout(0.5)
            while not stop.is_set():
                if bytes_per_s <= 0:
                    time.sleep(0.1)
                    continue
                if bytes_per_s < 1e6:
                    time.sleep(1 / bytes_per_s)
                with suppress(TimeoutError):
                    piece = connection.recv(1 if bytes_per_s < 1e6 else 65536)
                    if not piece or b"[DONE]" in piece:
                        break


def _left_within(server: _Server, seconds: float) -> float:
    """Requests that still run or wait after some time."""
    until_s = time.monotonic() + seconds
    while left := server.metric("swiftspec:num_requests_running") + server.metric("swiftspec:num_requests_waiting"):
        if time.monotonic() > until_s:
            break
        time.sleep(0.02)
    return left


def _leaving(server: _Server) -> Iterator[bool]:
    """Clients that leave: the time until nothing runs any more."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    for name, streams, number in (("streamed", True, 1), ("not streamed", False, 1), ("queued", True, _RUNNING + 4)):
        taken_s = []
        for _ in range(20):
            body = {"prompt": "def main():", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": streams}
            content = json.dumps(body).encode()
            head = f"{POSTS}content-length: {len(content)}\r\n\r\n"
            clients = [socket.create_connection((host, int(port))) for _ in range(number)]
            for client in clients:
                client.sendall(head.encode() + content)
            time.sleep(0.15)
            start_s = time.monotonic()
            for client in clients:
                client.close()
            if _left_within(server, 5.0):
                taken_s.append(float("inf"))
            else:
                taken_s.append(time.monotonic() - start_s)
        # The running step, the question over HTTP, and the 20 ms between two of them are part of it.
        yield _says(f"freed after its client left, {name}, median ms", 1e3 * median(taken_s), 100.0)
    console.say(f"counted as cancelled: {server.metric('swiftspec:request_cancelled_total'):.0f}")


def _faults(server: _Server, chosen: argparse.Namespace) -> Iterator[bool]:
    """Requests in a closed loop, while the draft is killed or frozen again and again."""
    workload = _workload(Arrivals(process=Process.CLOSED, num_clients=_RUNNING), 10 * chosen.faults)
    chance, stop, num_faults = random.Random(0), threading.Event(), 0

    def harm() -> None:
        nonlocal num_faults
        while not stop.wait(chance.uniform(0.2, 1.5)):
            pids = _workers(server.process.pid)
            if len(pids) < 2:
                continue
            with suppress(ProcessLookupError):
                if chance.random() < 0.5:
                    os.kill(pids[-1], signal.SIGKILL)
                else:
                    os.kill(pids[-1], signal.SIGSTOP)
                    time.sleep(chance.uniform(0.1, 1.5))
                    os.kill(pids[-1], signal.SIGCONT)
                num_faults += 1

    expected = server.send(workload)
    thread = threading.Thread(target=harm)
    thread.start()
    sent = server.send(workload)
    stop.set()
    thread.join()
    patience_s = Plan.load(chosen.plan).candidates[chosen.policy].patience_s * (1 + 0.25 * (_RUNNING - 1))
    silences = [b - a for answer in sent.answers for a, b in zip(answer.chunks_s, answer.chunks_s[1:], strict=False)]
    changed = sum(a.text != b.text for a, b in zip(expected.answers, sent.answers, strict=True))
    console.say(f"{len(sent.answers)} requests, {num_faults} faults of the draft")
    yield _says("requests that failed", sum(sent.failures.values()) + sent.metrics.refused, 0)
    yield _says("outputs that changed", changed, 0)
    yield _says("longest silence over twice the patience", max(silences) / (2 * patience_s), 1.0)


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


def _says(what: str, found: float, limit: float) -> bool:
    held = found <= limit
    console.say(f"{'held' if held else 'missed'}: {what}: {found:.3g} (limit {limit:.3g})")
    return held


if __name__ == "__main__":
    sys.exit(main())
