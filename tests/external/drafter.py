"""The real vLLM with a draft server, on CPUs: `make engines ENGINES_ARGS="--vllm PYTHON --only drafter"`.

The draft has the last core and vLLM's worker the first. Greedy outputs of 40 prompts beside plain decoding's, alone, at
4 and at 8 at once, with requests that are cancelled and prompts whose beginnings are cached; while the draft server is
killed and started again, stopped for two seconds, and replaced by one that sends nonsense; what 500 prompts leave
behind; and how likely tokens are above temperature 0.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import zmq
from scipy.stats import chi2_contingency

from swiftspec.cli import console
from swiftspec.engine.channel.curve import write_secret
from swiftspec.export.command import Command
from swiftspec.external.server import RunningServer
from swiftspec.loadtest.client import ServerClient
from swiftspec.machine import free_port
from tests.external.drafted_vllm import Setting

NUM_TOKENS = 64
DRAFTS_WITH = ("swiftspec_chain", "ssd", "amusd")
SAMPLES, SAMPLED_TOKENS, TEMPERATURE = 400, 4, 0.5  # so cold that some texts are frequent
LEAST_LIKELY = 0.001
LEAST_OFTEN = 12  # of both samples, for a text to be counted by itself
SOAK = 500
LIMIT_MS, LONGEST_WAIT = 100.0, 1.2  # a busy core may come back later


def texts(server: RunningServer, prompts: Sequence[str], *, at_once: int, num_tokens: int = NUM_TOKENS) -> list[str]:
    """Greedy continuations."""
    client = ServerClient(server.url)
    model = client.model()

    def text(prompt: str) -> str:
        return ServerClient(server.url).write(prompt, model=model, num_tokens=num_tokens, temperature=0.0, seed=0).text

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(text, prompts))


def cancelled(server: RunningServer, prompt: str, *, after_s: float) -> None:
    """Ask for a long text, and hang up.

    A greedy one: on CPUs vLLM 0.32.0 samples greedy requests, too, where drafts of sampled ones are in a step.
    """
    where = urlsplit(server.url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=30)
    body = {
        "model": ServerClient(server.url).model(),
        "prompt": prompt,
        "max_tokens": 400,
        "temperature": 0,
        "stream": True,
    }
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    connection.getresponse().read(1)
    time.sleep(after_s)
    connection.close()


def num_cached(server: RunningServer) -> float:
    """Prompt tokens that vLLM had cached."""
    return ServerClient(server.url).reading().count("prefix_cache_hits")


def with_shared_beginnings(prompts: Sequence[str]) -> list[str]:
    """Every second one behind the same text, which is longer than a block of vLLM's cache."""
    shared = "\n\n".join(prompts[:3])
    return [f"{shared}\n\n{prompt}" if number % 2 else prompt for number, prompt in enumerate(prompts)]


def num_apart(mine: Sequence[str], plain: Sequence[str]) -> int:
    return sum(one != other for one, other in zip(mine, plain, strict=True))


def accepted(server: RunningServer) -> float:
    """Draft tokens that vLLM has accepted, by its own counters."""
    return ServerClient(server.url).reading().count("spec_decode_num_accepted_tokens")


def outputs(setting: Setting, prompts: Sequence[str], plain: Sequence[str]) -> dict[str, int]:
    """Prompts whose text is not plain decoding's, by policy and how many were asked for at once."""
    apart: dict[str, int] = {}
    for policy in DRAFTS_WITH:
        with setting.draft_server(policy), setting.vllm(policy) as server:
            for at_once in (1, 4, 8):
                before, cached = accepted(server), num_cached(server)
                if at_once > 1:
                    others = [
                        threading.Thread(target=cancelled, args=(server, each), kwargs={"after_s": 0.3})
                        for each in prompts[:4]
                    ]
                    for each in others:
                        each.start()
                name = f"{policy}, {at_once} at once"
                apart[name] = num_apart(texts(server, prompts, at_once=at_once), plain)
                cached = num_cached(server) - cached
                if not cached:
                    apart[f"{name}, and nothing cached"] = 1
                console.say(
                    f"{name}: {apart[name]} apart, {accepted(server) - before:.0f} tokens accepted of "
                    f"{NUM_TOKENS * len(prompts)}, {cached:.0f} prompt tokens cached"
                )
    return apart


def faults(setting: Setting, prompts: Sequence[str], plain: Sequence[str]) -> dict[str, int]:
    """The same while the draft server is killed, stopped or replaced."""
    apart: dict[str, int] = {}

    def run(name: str, server: RunningServer, harm: Callable[[], None]) -> None:
        harming = threading.Thread(target=harm)
        harming.start()
        apart[name] = num_apart(texts(server, prompts, at_once=4), plain)
        harming.join()
        console.say(f"{name}: {apart[name]} apart")

    with setting.vllm("faults", limit_ms=LIMIT_MS) as server:
        run("no draft server", server, lambda: None)
        with setting.draft_server() as draft:

            def stop() -> None:
                for _ in range(3):
                    time.sleep(2)
                    draft.send_signal(signal.SIGSTOP)
                    time.sleep(2)
                    draft.send_signal(signal.SIGCONT)

            run("stopped three times for two seconds", server, stop)

            def kill() -> None:
                time.sleep(3)
                draft.kill()

            run("killed", server, kill)

        def restart() -> None:
            for _ in range(2):
                with setting.draft_server() as again:
                    time.sleep(4)
                    again.kill()

        run("started and killed twice", server, restart)
        run("nonsense", server, lambda: nonsense(setting.address, seconds=5))
        with setting.draft_server():
            before = accepted(server)
            run("back again", server, lambda: None)
            if accepted(server) - before < 200:
                apart["back again, and nothing accepted"] = 1
        waits_ms = [float(each) for each in re.findall(r"and ([0-9.]+) at most; ", server.log.read_text())]
        console.say(f"a step waited at most {max(waits_ms)} ms in {len(waits_ms)} reports")
        if max(waits_ms) > LONGEST_WAIT * LIMIT_MS:
            apart["a step waited longer than its limit"] = 1
    return apart


def nonsense(address: str, *, seconds: float) -> None:
    """Answer every message with others that are wrong."""
    Path(address.removeprefix("ipc://")).unlink(missing_ok=True)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(address)
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        frame = socket.recv_multipart()[0] if socket.poll(20) else secrets.token_bytes(25)
        for kind in range(8):
            content = frame[:12] + bytes([kind]) + secrets.token_bytes(4 * secrets.randbelow(9))
            with suppress(zmq.Again):
                socket.send_multipart([content, secrets.token_bytes(9)][: 1 + secrets.randbelow(2)], zmq.NOBLOCK)
    socket.close()
    context.term()


def law(setting: Setting, lookup: Command, prompt: str) -> dict[str, float]:
    """How likely texts differ as much from plain decoding's if both have one law: with n-gram's drafts, and with ours.

    vLLM draws the tokens itself, and on CPUs by another law wherever there are drafts; see `mended_vllm`.
    """
    counted: dict[str, Counter[str]] = {}
    servers: Mapping[str, Callable[[], AbstractContextManager[RunningServer]]] = {
        "plain": setting.vllm_alone,
        "n-gram": partial(setting.vllm_alone, lookup),
        "law": setting.vllm_law,
    }
    for name, started in servers.items():
        with setting.draft_server(), started() as server:
            model = ServerClient(server.url).model()

            def sample(seed: int, url: str = server.url, model: str = model) -> str:
                client = ServerClient(url)
                return client.write(
                    prompt, model=model, num_tokens=SAMPLED_TOKENS, temperature=TEMPERATURE, seed=seed
                ).text

            with ThreadPoolExecutor(8) as pool:
                counted[name] = Counter(pool.map(sample, range(SAMPLES)))
    plain = counted.pop("plain")
    found = {name: _likeliness(plain, texts) for name, texts in counted.items()}
    console.say(f"how likely both laws are one: {found}")
    return found


def _likeliness(one: Counter[str], other: Counter[str]) -> float:
    often = [text for text, count in (one + other).items() if count >= LEAST_OFTEN]
    table = [[count[text] for text in often] for count in (one, other)]
    for row in table:
        row.append(SAMPLES - sum(row))
    return float(chi2_contingency(table).pvalue)


def soak(setting: Setting, prompts: Sequence[str]) -> dict[str, object]:
    """What many prompts leave: memory of both processes as they come, and of vLLM alone, in MB."""
    many = [prompts[number % len(prompts)] for number in range(SOAK)]
    found: dict[str, object] = {}
    with setting.vllm_alone() as server:
        found["vLLM alone"] = [_megabytes(largest) for largest in _soaked(server, many)]
    with setting.draft_server() as draft, setting.vllm("soak") as server:
        both = [(_megabytes(largest), _megabytes(draft.pid)) for largest in _soaked(server, many)]
        found["vLLM, draft server"] = both
        texts(server, prompts[:1], at_once=1)  # its steps let the server forget the last ones
    found["draft"] = json.loads((setting.folder / f"draft-{DRAFTS_WITH[0]}.json").read_text())
    return found


def _soaked(server: RunningServer, prompts: Sequence[str]) -> Iterator[int]:
    """The server's largest process, after all prompts, three times."""
    for _ in range(3):
        texts(server, prompts, at_once=8, num_tokens=32)
        yield max(_processes(server.group.pid), key=_megabytes)


def _processes(group: int) -> list[int]:
    numbers = [int(each.name) for each in Path("/proc").glob("[0-9]*")]
    return [number for number in numbers if _group(number) == group]


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def _megabytes(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1e3 if found else 0.0


def refusals(setting: Setting, prompts: Sequence[str], plain: Sequence[str]) -> dict[str, bool]:
    """Whether one sentence in vLLM's log says what is wrong, and its texts are right."""
    other = replace(setting, draft=_with_other_vocabulary(setting.draft, setting.folder / "other-draft"))
    two = setting.folder / "draft.secret", setting.folder / "vllm.secret"
    for file in two:
        file.unlink(missing_ok=True)
        write_secret(file)
    shut = replace(setting, port=free_port(), secrets=two)
    cases: Mapping[str, tuple[Setting, str, str]] = {
        "no server": (setting, "", "nobody answers at"),
        "another secret": (shut, "num_draft_tokens=5", "or it has another secret"),
        "another vocabulary": (other, "num_draft_tokens=5", "its draft has another vocabulary than this model"),
        "fewer draft tokens": (
            setting,
            "num_draft_tokens=3",
            "num_speculative_tokens is 5, and swiftspec_chain there sends",
        ),
    }
    held = {}
    for name, (here, shape, sentence) in cases.items():
        with ExitStack() as stack:
            if shape:
                stack.enter_context(here.draft_server(shape=shape))
            server = stack.enter_context(here.vllm(name.replace(" ", "-")))
            time.sleep(6)
            right = not num_apart(texts(server, prompts[:8], at_once=4), plain[:8])
            said = server.log.read_text(errors="replace")
            held[name] = right and said.count(sentence) == 1 and "Traceback" not in said
            console.say(f"{name}: {held[name]}")
    return held


def _with_other_vocabulary(draft: Path, folder: Path) -> Path:
    """A copy of a draft, two tokens of which have changed places."""
    shutil.copytree(draft, folder, dirs_exist_ok=True)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, two = list(vocabulary)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def check(setting: Setting, lookup: Command, prompts: Sequence[str]) -> tuple[dict[str, object], bool]:
    """All of it: the results, and whether everything held. lookup: vLLM's command with n-gram."""
    prompts = with_shared_beginnings(prompts)
    with setting.vllm_alone() as server:
        plain = texts(server, prompts, at_once=1)
    results: dict[str, object] = {}
    results["outputs"] = apart = outputs(setting, prompts, plain)
    results["faults"] = harmed = faults(setting, prompts, plain)
    results["refusals"] = refused = refusals(setting, prompts, plain)
    results["law"] = likely = law(setting, lookup, prompts[0])
    results["soak"] = soak(setting, prompts)
    is_lawful = likely["law"] > LEAST_LIKELY
    return results, not any(apart.values()) and not any(harmed.values()) and all(refused.values()) and is_lawful
