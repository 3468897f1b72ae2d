"""A server of a small random pair in a process of its own, and how its answers are read."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

from tests.cli.samples import plan as sample_plan
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.pairs import references, write_pair
from tests.engine.processes import until
from tools.served import served


def write_plan(folder: Path) -> Path:
    """A plan of a small random pair with a tokenizer that has a token for every printable character."""
    pair = write_pair(folder, architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    target, draft = references(pair)
    path = folder / "plan.json"
    sample_plan(target=target, draft=draft).save(path)
    return path


@dataclass(slots=True)
class Running:
    """A server: its process, what that has said, and requests to it."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=60)

    @contextmanager
    def ask(self, path: str, body: Mapping[str, Any] | bytes | None = None, **headers: str) -> Iterator[HTTPResponse]:
        """Send a request, a POST if it has a body; the answer's body is not read."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **self.headers, **headers}
        with closing(self.connect()) as connection:
            connection.request("GET" if body is None else "POST", path, body=content, headers=sent)
            yield connection.getresponse()

    def json(self, path: str, body: Mapping[str, Any] | bytes | None = None, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        with self.ask(path, body, **headers) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content else None

    def metric(self, name: str) -> float:
        """A metric's value, summed over its labels; 0 before it has any."""
        with self.ask("/metrics") as answer:
            text = answer.read().decode()
        found = [each.rpartition(" ")[2] for each in text.splitlines() if re.split(r"[ {]", each)[0] == name]
        assert found or f"# TYPE {name} " in text, name
        return sum(map(float, found))

    def wait_until_idle(self, *, within_s: float) -> None:
        """Wait until nothing runs or waits, and nothing is kept of a request that has ended."""
        names = ("swiftspec:num_requests_running", "swiftspec:num_requests_waiting", "swiftspec:kv_cache_usage_perc")
        until(lambda: not any(self.metric(name) for name in names), within_s=within_s)

    def end(self, number: signal.Signals = signal.SIGTERM, *, within_s: float = 60.0) -> int:
        """Signal it, and wait for its end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(within_s)


def events(answer: HTTPResponse) -> Iterator[Any]:
    """Data of a stream's events, without the last one, `[DONE]`, which has to be there."""
    for line in answer:
        if line.strip() == b"data: [DONE]":
            return
        if line.startswith(b"data: "):
            yield json.loads(line[6:])
    raise AssertionError("a stream without [DONE]")


@contextmanager
def running(plan: Path, *arguments: str, log: Path, before: Sequence[str] = ()) -> Iterator[Running]:
    """A server that accepts requests; it is ended, hard, at last. before: as of `served`."""
    with served(plan, *arguments, log=log, before=before) as (process, url):
        yield Running(process, int(url.rpartition(":")[2]), log)
