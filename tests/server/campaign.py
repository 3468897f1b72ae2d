"""Faults and odd requests at a loaded server: `python -m tests.server.campaign --plan PLAN`.

Clients send known requests, whose answers were noted before, and odd ones (`odd_requests`); meanwhile processes are
killed, stopped and told to end, the draft among them where it has devices of its own. Each policy of the plan has a
server of its own. A table at the end, and exit code 1 if there was a wrong token, a traceback, an answer that
took longer than 5 s beyond a process's stop, a process ended by a request, one that has grown, or one left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from swiftspec.artifacts.plan import Plan
from swiftspec.policies import Layout
from tests.engine.processes import children, engine_processes, gone_within, is_running, resident_bytes, workers
from tests.server.odd_requests import Odd, odd_request
from tools.served import served

NUM_KNOWN = 24
NUM_THREADS = 6
LONGEST_S = 5.0
STOPPED_S = (0.1, 1.0)
MOST_GROWTH, SLACK_BYTES = 0.05, 24 << 20
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@dataclass(slots=True)
class Findings:
    """What went wrong, and what was sent."""

    statuses: Counter[int] = field(default_factory=Counter)
    num_known: int = 0
    num_odd: int = 0
    num_faults: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--policies", default="", help="names, with commas (default: all that the plan has)")
    parser.add_argument("--faults", type=int, default=400, help="of all servers together (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=10_000, help="odd ones, of all together (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", default="none", help="as of `swiftspec serve` (default: %(default)s)")
    chosen = parser.parse_args()
    plan = Plan.load(chosen.plan)
    names = [name for name in chosen.policies.split(",") if name] or list(plan.candidates)
    held = True
    for number, name in enumerate(names):
        policy = plan.candidates[name].build()
        part = Part(
            plan=chosen.plan,
            policy=name,
            control=chosen.control if policy.elastic else "none",
            has_peer=policy.layout is Layout.DISAGGREGATED,
            chance=random.Random(f"{chosen.seed} {name}"),
            num_faults=share(chosen.faults, len(names), number),
            num_odd=share(chosen.requests, len(names), number),
        )
        held &= campaign(part)
    return 0 if held else 1


def share(total: int, count: int, number: int) -> int:
    return total // count + (number < total % count)


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is done to one server. has_peer: whether its draft has devices of its own."""

    plan: Path
    policy: str
    control: str
    has_peer: bool
    chance: random.Random
    num_faults: int
    num_odd: int


def campaign(part: Part) -> bool:
    """One server's part; whether all held."""
    found, chance = Findings(), part.chance
    with TemporaryDirectory() as folder:
        log, template = Path(folder, "log"), Path(folder, "template")
        template.write_text(TEMPLATE)
        limits = f"--max-context 192 --max-restarts {part.num_faults + 1} --chat-template {template}"
        options = f"--policy {part.policy} --set control={part.control} {limits}".split()
        with served(part.plan, *options, log=log) as (process, url):
            port = int(url.rpartition(":")[2])
            known = [(asked, said(port, asked)) for asked in map(known_request, range(NUM_KNOWN))]
            run(found, port, known, chance, num_odd=part.num_odd // 10, faults=lambda: None)  # to its usual size
            sizes = sizes_of(process.pid)
            found = Findings(wrong=found.wrong)
            target = workers(process.pid)[0]
            victims = faults(process.pid, has_peer=part.has_peer)

            def hit() -> None:
                fault(victims, found, chance)

            run(found, port, known, chance, num_odd=part.num_odd, faults=hit, num_faults=part.num_faults)
            time.sleep(2.0)
            found.wrong += grown(sizes, sizes_of(process.pid))
            found.wrong += [] if is_running(target) and process.poll() is None else ["a process was ended"]
            found.wrong += [wrong for asked, answer in known if (wrong := difference(asked, answer, said(port, asked)))]
            below = [*engine_processes(process.pid), *children(process.pid)]
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            found.wrong += [] if code == 0 else [f"exit code {code}"]
            found.wrong += [] if gone_within(below, 5.0) else ["a process was left behind"]
        _, _, traceback = log.read_text().partition("Traceback")
        found.wrong += [f"a traceback in the log: {traceback[:2000]}"] if traceback else []
    report(f"{part.policy}, control {part.control}", found)
    return not found.wrong


def known_request(number: int) -> dict[str, Any]:
    chance = random.Random(number)
    return {
        "prompt": "def add(a, b):\n" * (1 + number % 3) + f"# {chance.randrange(10**6)}\n",
        "max_tokens": chance.choice((4, 20, 60)),
        "temperature": (0, 0.9)[number % 2],
        "seed": number,
        "stop": [["\n\n"], ["zz", "a"], []][number % 3],
        "ignore_eos": number % 4 == 0,
    }


def said(port: int, asked: dict[str, Any]) -> Any:
    """The choices and the usage of an answer, or its error."""
    content, headers = json.dumps(asked).encode(), {"content-type": "application/json"}
    with closing(HTTPConnection("127.0.0.1", port, timeout=60.0)) as connection, suppress(OSError, HTTPException):
        connection.request("POST", "/v1/completions", content, headers)
        answer = json.loads(connection.getresponse().read())
        return (answer["choices"], answer["usage"]) if "choices" in answer else answer
    return "no answer"


def difference(asked: dict[str, Any], expected: Any, answer: Any) -> str:
    return "" if answer == expected else f"{asked} has {answer}; expected {expected}"


def run(
    found: Findings,
    port: int,
    known: Sequence[tuple[dict[str, Any], Any]],
    chance: random.Random,
    *,
    num_odd: int,
    faults: Callable[[], None],
    num_faults: int = 0,
) -> None:
    """Send odd and known requests from several clients until all are sent, and all faults have happened."""
    left, lock = [num_odd], threading.Lock()
    has_faults = threading.Event()

    def client(seed: int) -> None:
        own = random.Random(seed)
        while True:
            with lock:
                left[0] -= 1
                if left[0] < 0 and has_faults.is_set():
                    return
            note_odd(found, odd_request(port, own)) if left[0] >= 0 else None
            if own.random() < 0.25 or left[0] < 0:
                asked, expected = own.choice(known)
                start_s = time.perf_counter()
                answer = said(port, asked)
                found.longest_s = max(found.longest_s, time.perf_counter() - start_s)
                found.num_known += 1
                if not is_busy(answer) and (each := difference(asked, expected, answer)):
                    found.wrong.append(each)

    threads = [threading.Thread(target=client, args=(chance.randrange(2**32),)) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for _ in range(num_faults):
        faults()
        time.sleep(chance.uniform(0.0, 0.3))
    has_faults.set()
    for thread in threads:
        thread.join()


def is_busy(answer: Any) -> bool:
    return isinstance(answer, dict) and "waiting" in answer["error"]["message"]


def note_odd(found: Findings, odd: Odd) -> None:
    found.num_odd += 1
    found.statuses[odd.status] += 1
    found.longest_s = max(found.longest_s, odd.seconds)
    if why := odd.fault:
        found.wrong.append(f"{why}: {odd.sent} -> {odd.answer[:300]!r}")
    if odd.seconds > LONGEST_S + max(STOPPED_S):
        found.wrong.append(f"{odd.seconds:.1f} s: {odd.sent}")


Victims = dict[str, Callable[[], int | None]]


def faults(server: int, *, has_peer: bool) -> Victims:
    """Who may be hit, by name: what finds its process, if it is there now."""

    def worker(place: int) -> int | None:
        found = workers(server)
        return found[place] if len(found) > place else None

    def fork_server() -> int | None:
        return next((pid for pid in children(server) if children(pid)), None)

    def renderer() -> int | None:
        return next((pid for pid in children(server) if "chat_template" in command(pid)), None)

    hit: Victims = {"stop target": lambda: worker(0), "kill renderer": renderer, "stop renderer": renderer}
    if has_peer:
        hit |= {f"{how} draft": lambda: worker(1) for how in ("kill", "stop", "term", "segv")}
        hit |= {f"{how} fork server": fork_server for how in ("stop",)}
    return hit


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def fault(victims: Victims, found: Findings, chance: random.Random) -> None:
    """Hit one of them."""
    name = chance.choice(sorted(victims))
    how, _, _ = name.partition(" ")
    if (pid := victims[name]()) is None:
        name = f"{name}: it was not there"
    else:
        with suppress(ProcessLookupError):
            if how == "stop":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(chance.uniform(*STOPPED_S))
                os.kill(pid, signal.SIGCONT)
            else:
                os.kill(pid, {"kill": signal.SIGKILL, "term": signal.SIGTERM, "segv": signal.SIGSEGV}[how])
    found.num_faults[name] += 1


def sizes_of(server: int) -> dict[str, int]:
    names = {"the server": server, **dict(zip(("the target", "the draft"), workers(server), strict=False))}
    return {name: resident_bytes(pid) for name, pid in names.items()}


def grown(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Processes that have grown, in words."""
    return [
        f"{name} has {size / 1e6:.0f} MB, and had {before[name] / 1e6:.0f}"
        for name, size in after.items()
        if name in before and size > before[name] * (1 + MOST_GROWTH) + SLACK_BYTES
    ]


def report(name: str, found: Findings) -> None:
    print(f"\n{name}: {found.num_odd} odd and {found.num_known} known requests, {found.num_faults.total()} faults")
    print(f"  statuses {dict(sorted(found.statuses.items()))}; the longest took {found.longest_s:.2f} s")
    print(f"  faults {dict(sorted(found.num_faults.items()))}")
    for sentence, count in Counter(found.wrong).most_common(20):
        print(f"  WRONG {count} times: {sentence}")
    print(f"  {'FAILED' if found.wrong else 'held'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
