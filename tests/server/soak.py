"""Soak of the server: `python -m tests.server.soak --plan PLAN --prompts F --minutes 30`.

Requests come at a share of saturation; one in five is left by its client at a random moment. Memory, descriptors and
threads of the server and of the engine's processes are noted every minute. Exit code 1 if any of them grows after the
first fifth of the time, or if a request fails.
"""

import argparse
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from swiftspec.artifacts.prompts import read_prompts
from swiftspec.loadtest import ServerClient, encoded_prompts
from tests.engine.processes import num_files, resident_bytes, workers
from tools.served import served

PROMPT_TOKENS, OUTPUT_TOKENS = 48, 64
LEFT = 0.2  # share of requests
MOST_GROWTH = 0.02  # of resident memory
SLACK_BYTES = 4e6
ENDS_WITHIN_S = 5.0
POSTS = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


@dataclass(frozen=True)
class Sample:
    """A process at a moment."""

    resident_bytes: int
    num_files: int
    num_threads: int

    @classmethod
    def of(cls, pid: int) -> "Sample":
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
        return cls(resident_bytes(pid), num_files(pid), threads)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--share", type=float, default=0.6, help="of saturation (default: %(default)s)")
    parser.add_argument("--policy", default="swiftspec", help="one of the plan's (default: %(default)s)")
    chosen = parser.parse_args()
    with (
        TemporaryDirectory() as folder,
        served(chosen.plan, "--policy", chosen.policy, log=Path(folder) / "log") as (process, url),
    ):
        client = ServerClient(url)
        model = client.model()
        prompts = encoded_prompts(client, read_prompts(chosen.prompts), model=model)
        rate = chosen.share * saturation(client, model, prompts)
        print(f"{rate:.2f} requests/s", flush=True)
        processes = {"server": process.pid, **dict(zip(("target", "draft"), workers(process.pid), strict=False))}
        samples: dict[str, list[Sample]] = {name: [] for name in processes}
        failures = run(client, url, model, prompts, rate, chosen.minutes, samples, processes)
        left = left_behind(url)
        print(f"cancelled {metric(url, 'swiftspec:request_cancelled_total'):.0f}, left behind {left:.0f}")
    for sentence in sorted(set(failures)):
        print(f"failed: {failures.count(sentence)} times {sentence}")
    held = not failures and not left
    for name, of_process in samples.items():
        held &= is_flat(name, of_process)
    return 0 if held else 1


def saturation(client: ServerClient, model: str, prompts: Sequence[tuple[int, ...]]) -> float:
    """Requests per second of eight clients."""
    done = SimpleQueue[None]()

    def ask() -> None:
        for number in range(6):
            prompt = (prompts[number % len(prompts)] * PROMPT_TOKENS)[:PROMPT_TOKENS]
            client.complete(prompt, model=model, num_tokens=OUTPUT_TOKENS)
            done.put(None)

    start_s = time.perf_counter()
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done.qsize() / (time.perf_counter() - start_s)


def run(
    client: ServerClient,
    url: str,
    model: str,
    prompts: Sequence[tuple[int, ...]],
    rate: float,
    minutes: float,
    samples: dict[str, list[Sample]],
    processes: dict[str, int],
) -> list[str]:
    """Send for a while; sentences of requests that failed."""
    chance, failures = random.Random(0), list[str]()
    start_s = time.monotonic()
    next_sample_s = arrival_s = start_s
    num_sent = 0
    while arrival_s < start_s + 60 * minutes:
        arrival_s += chance.expovariate(rate)
        time.sleep(max(0.0, arrival_s - time.monotonic()))
        prompt = (chance.choice(prompts) * PROMPT_TOKENS)[:PROMPT_TOKENS]
        num_sent += 1
        if chance.random() < LEFT:
            threading.Thread(target=leave, args=(url, prompt, chance.uniform(0.0, 0.5))).start()
        else:
            threading.Thread(target=ask, args=(client, model, prompt, failures)).start()
        if time.monotonic() >= next_sample_s:
            next_sample_s += 60.0
            for name, pid in processes.items():
                samples[name].append(Sample.of(pid))
            now = {name: round(of[-1].resident_bytes / 1e6, 1) for name, of in samples.items()}
            print(f"{(time.monotonic() - start_s) / 60:.0f} min, {num_sent} requests, MB: {now}", flush=True)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(60.0)
    return failures


def ask(client: ServerClient, model: str, prompt: tuple[int, ...], failures: list[str]) -> None:
    answer = client.complete(prompt, model=model, num_tokens=OUTPUT_TOKENS)
    if answer.error:
        failures.append(answer.error)


def leave(url: str, prompt: tuple[int, ...], after_s: float) -> None:
    """Send a request, and close the connection a moment later."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    body = json.dumps({"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "stream": True}).encode()
    with suppress(OSError), closing(socket.create_connection((host, int(port)))) as connection:
        head = f"{POSTS}content-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        time.sleep(after_s)


def left_behind(url: str) -> float:
    """Requests that are still there some seconds after the last client has gone."""
    until_s = time.monotonic() + ENDS_WITHIN_S
    while left := metric(url, "swiftspec:num_requests_running") + metric(url, "swiftspec:num_requests_waiting"):
        if time.monotonic() > until_s:
            break
        time.sleep(0.1)
    return left


def metric(url: str, name: str) -> float:
    with urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].partition(" ")[0] == name)


def is_flat(name: str, samples: Sequence[Sample]) -> bool:
    """Whether a process has grown since the first fifth of the time."""
    first, last = samples[len(samples) // 5], samples[-1]
    growth = last.resident_bytes - first.resident_bytes
    held = growth <= MOST_GROWTH * first.resident_bytes + SLACK_BYTES
    held &= last.num_files <= first.num_files + 16  # connections of requests under way
    held &= last.num_threads <= first.num_threads + 2
    print(
        f"{name}: {growth / 1e6:+.1f} MB of {first.resident_bytes / 1e6:.0f}, {last.num_files - first.num_files:+d} "
        f"descriptors, {last.num_threads - first.num_threads:+d} threads: {'flat' if held else 'GROWS'}"
    )
    return held


if __name__ == "__main__":
    sys.exit(main())
