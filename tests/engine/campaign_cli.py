"""Faults of `swiftspec run`: text, exit code, files, and leftovers. See `campaign`."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.cli.samples import plan as sample_plan
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.campaign_record import HANG_S, Injector, Record
from tests.engine.pairs import references, write_pair
from tests.engine.processes import children, engine_processes, gone_within, hear_interrupts, is_running

_TEXTS = ("def add(a, b):\n", "import os\n", "for i in range(10):")
_NEW_TOKENS = 100
_ENDS_WITHIN_S = 120.0  # a whole run on a busy machine; what a fault ends has to end within HANG_S


class _Fault(NamedTuple):
    """Action, resulting exit code, and whether it ends the run."""

    act: Callable[[], object]
    code: int = 0
    ends: bool = False


class CommandLine:
    """One run after another, each with one fault."""

    def __init__(self, directory: Path, scratch: Path, rng: random.Random) -> None:
        self._directory, self._scratch, self._rng = directory, scratch, rng
        directory.mkdir()
        pair = write_pair(directory, architecture="llama")
        for model in pair:
            write_printable_tokenizer(model)
        target, draft = references(pair, inflate="layers=12,hidden=192")
        sample_plan(target=target, draft=draft).save(directory / "plan.json")
        (directory / "prompts.jsonl").write_text(
            "\n".join(json.dumps({"id": f"text-{number}", "prompt": text}) for number, text in enumerate(_TEXTS))
        )
        with self._start("--policy", "autoregressive") as run:
            self._expected = run.communicate()[0]
        assert run.returncode == 0, "undisturbed"
        self._launcher = run

    def _start(self, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "swiftspec", "run", "--plan", str(self._directory / "plan.json")]
        command += ["--prompts", str(self._directory / "prompts.jsonl"), "--max-new-tokens", str(_NEW_TOKENS)]
        command += ["--json", str(self._directory / "out.json"), *options]
        (self._directory / "out.json").unlink(missing_ok=True)
        environment = os.environ | {"TMPDIR": str(self._scratch), "PYTHONUNBUFFERED": "1"}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command,
            stdout=pipe,
            stderr=pipe,
            text=True,
            env=environment,
            start_new_session=True,
            preexec_fn=hear_interrupts,
        )

    def _pids(self) -> dict[str, int]:
        launcher = self._launcher.pid
        own = engine_processes(launcher)
        fork_servers = [pid for pid in children(launcher) if pid in own and children(pid)] or own[:1]
        pids = {"launcher": launcher} if self._launcher.poll() is None else {}
        if fork_servers:
            workers = children(fork_servers[-1])
            pids |= {"fork server": fork_servers[-1]} | dict(zip(("target", "draft"), workers, strict=False))
        return pids

    def _faults(self, inject: Injector) -> dict[str, _Fault]:
        def send(number: signal.Signals, *names: str) -> Callable[[], object]:
            return lambda: inject.signal(names, number)

        def stop(*names: str) -> Callable[[], object]:
            return lambda: inject.stop(names, for_good=True)

        def both(*acts: Callable[[], object]) -> Callable[[], object]:
            return lambda: [act() for act in acts]

        def to_group(number: signal.Signals) -> Callable[[], object]:
            return lambda: os.killpg(self._launcher.pid, number)

        interrupt, end, hang_up, kill = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL
        kill_launcher = send(kill, "launcher")
        return {
            "Ctrl-C": _Fault(to_group(interrupt), 130, ends=True),
            "Ctrl-C three times": _Fault(both(*[to_group(interrupt)] * 3), 130, ends=True),
            "SIGTERM": _Fault(send(end, "launcher"), 143, ends=True),
            "SIGTERM to all": _Fault(to_group(end), 143, ends=True),
            "SIGHUP to all": _Fault(to_group(hang_up), 129, ends=True),
            "stop target, Ctrl-C": _Fault(both(stop("target"), to_group(interrupt)), 130, ends=True),
            "stop fork server, kill draft, SIGTERM": _Fault(
                both(stop("fork server"), send(kill, "draft"), send(end, "launcher")), 143, ends=True
            ),
            "kill launcher": _Fault(kill_launcher, -9, ends=True),
            "stop target, kill launcher": _Fault(both(stop("target"), kill_launcher), -9, ends=True),
            "stop draft, kill launcher": _Fault(both(stop("draft"), kill_launcher), -9, ends=True),
            "stop fork server, kill launcher": _Fault(both(stop("fork server"), kill_launcher), -9, ends=True),
            "stop all, kill launcher": _Fault(
                both(stop("fork server", "target", "draft"), kill_launcher), -9, ends=True
            ),
            "kill fork server, stop target, kill launcher": _Fault(
                both(send(kill, "fork server"), lambda: time.sleep(0.2), stop("target"), kill_launcher), -9, ends=True
            ),
            "kill target": _Fault(send(kill, "target"), 3, ends=True),
            "kill draft": _Fault(send(kill, "draft")),
            "kill fork server": _Fault(send(kill, "fork server")),
            "kill fork server and draft": _Fault(send(kill, "fork server", "draft")),
            "stop fork server, kill draft": _Fault(both(stop("fork server"), send(kill, "draft"))),
            "stop draft": _Fault(stop("draft")),
            "remove sockets, kill draft": _Fault(both(inject.remove_sockets, send(kill, "draft"))),
        }

    def suffer(self) -> Record:
        before = engine_processes(self._launcher.pid)
        assert not before, "nothing is left of the last run"
        with self._start() as self._launcher:
            inject = Injector(self._pids, self._scratch, self._rng)
            faults = self._faults(inject)
            name = self._rng.choice(list(faults))
            output = _Reader(self._launcher)
            moment = self._await_moment(output)
            faults[name].act()
            struck_s = time.monotonic()
            try:
                self._launcher.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._launcher.kill()
            end_s = time.monotonic() - struck_s
            text, errors = output.read()
        wrong = self._wrong(faults[name], moment, text, errors, end_s=end_s)
        ends = faults[name].ends and self._launcher.returncode == faults[name].code
        return Record(
            world="run",
            fault=name,
            moment=moment,
            wrong=tuple(wrong),
            ending=str(self._launcher.returncode),
            losses=errors.count("continued without its draft"),
            gap_s=0.0 if ends else output.longest_gap_s(),
            end_s=end_s if ends else 0.0,
        )

    def _await_moment(self, output: _Reader) -> str:
        """Until the fault is due; when that is."""
        moment = self._rng.choice(("start-up", "between requests", "mid-request", "mid-request"))
        if moment == "start-up":
            seconds = self._rng.uniform(0.4, 4.0)
            time.sleep(seconds)
            return f"start-up, {seconds:.1f} s"
        number = self._rng.randrange(1 if moment == "between requests" else 0, len(_TEXTS))
        output.await_text(f"== text-{number} ==\n")
        if moment == "mid-request":
            output.await_more(self._rng.choice((1, 1, 5, 20)))
        return f"{moment}, {number}"

    def _wrong(self, fault: _Fault, moment: str, text: str, errors: str, *, end_s: float) -> list[str]:
        code, wrong = self._launcher.returncode, []
        # One that came when all was said, or befell a process that was not there, changes nothing.
        expected = {fault.code} | ({0} if not fault.ends or text == self._expected or "start-up" in moment else set())
        if code not in expected:
            wrong.append(f"exit code {code}, not {fault.code}: {errors[-300:]}")
        if code == 0 and text != self._expected:
            wrong.append("the text is not that of an undisturbed run")
        if not self._expected.startswith(text.rstrip("\n")):
            wrong.append("the text is not the beginning of that of an undisturbed run")
        if "Traceback" in errors:
            wrong.append(f"a traceback: {errors[-600:]}")
        if fault.ends and code == fault.code and end_s > HANG_S:
            wrong.append(f"ended after {end_s:.1f} s")
        if code in (3, 129, 130, 143) and text.count("\n") > 1 and len(text.splitlines()[2:]) > 0:
            wrong += self._wrong_file(text)
        own = engine_processes(self._launcher.pid)
        if not gone_within(own, 2.0):
            wrong.append(f"left running: {[pid for pid in own if is_running(pid)]}")
            for pid in own:
                os.kill(pid, signal.SIGKILL)
        left = list(self._scratch.glob("swiftspec-*"))
        if code >= 0 and left:  # what a killed launcher leaves is swept by the next run
            wrong.append(f"left: {left}")
        return wrong

    def _wrong_file(self, text: str) -> list[str]:
        """`--json` has to hold what was shown, but for what a dying target has not told."""
        path = self._directory / "out.json"
        if not path.exists():
            return ["--json was not written"]
        kept = [prompt["text"] for prompt in json.loads(path.read_text())["prompts"]]
        return [] if all(part in text for part in kept) else ["--json holds other text"]

    def close(self) -> list[Record]:
        with self._start() as run:
            run.communicate()
        left = [f"left: {path}" for path in self._scratch.glob("swiftspec-*")]
        return [Record(world="run", fault="none", moment="end", wrong=tuple(left), ending=str(run.returncode))]


class _Reader:
    """Reads both outputs of a run in threads, and knows when text came."""

    def __init__(self, run: subprocess.Popen[str]) -> None:
        assert run.stdout
        assert run.stderr
        self._run = run
        self._text, self._errors = "", ""
        self._times_s: list[float] = []
        self._news = threading.Condition()
        self._threads = [threading.Thread(target=self._read_text), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read_text(self) -> None:
        assert self._run.stdout
        while piece := self._run.stdout.read(1):
            with self._news:
                self._text += piece
                self._times_s.append(time.monotonic())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def _read_errors(self) -> None:
        assert self._run.stderr
        self._errors = self._run.stderr.read()

    def await_text(self, text: str) -> None:
        with self._news:
            self._news.wait_for(lambda: text in self._text or not self._threads[0].is_alive(), _ENDS_WITHIN_S)

    def await_more(self, num_characters: int) -> None:
        with self._news:
            wanted = len(self._text) + num_characters
            self._news.wait_for(lambda: len(self._text) >= wanted or not self._threads[0].is_alive(), _ENDS_WITHIN_S)

    def read(self) -> tuple[str, str]:
        """All of both, once the run has ended."""
        for thread in self._threads:
            thread.join(HANG_S)
        return self._text, self._errors

    def longest_gap_s(self) -> float:
        return max((after - before for before, after in pairwise(self._times_s)), default=0.0)
