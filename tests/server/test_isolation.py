"""A loaded server whose programs raise errors in random places: they end their own requests, and nobody else's."""

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.policies.base import Value
from tests.cli.samples import candidate
from tests.engine.conftest import two_cores
from tests.server.faulty_policies import SAYS, install_faulty_policies
from tests.server.running import Running, events, running, write_plan

pytestmark = two_cores
NUM_REQUESTS = 60
SHAPES: dict[str, tuple[str, dict[str, Value]]] = {
    "faulty_chain": ("serial_chain", {"num_draft_tokens": 2}),
    "faulty_swiftspec": ("swiftspec", {"verify_rows": 4, "expand_rows": 2}),
}


@pytest.fixture(scope="module", params=SHAPES)
def faulty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A server of such a policy, and its log."""
    folder = tmp_path_factory.mktemp("faulty")
    install_faulty_policies(folder / "site")
    original, shape = SHAPES[request.param]
    plan = Plan.load(write_plan(folder))
    made = candidate(original, tokens_per_s=100.0, shape=shape)
    file, variables = folder / "plan.json", ("env", f"PYTHONPATH={folder / 'site'}")
    plan.model_copy(update={"chosen": made, "alternatives": ()}).save(file)
    file.write_text(file.read_text().replace(f'"policy": "{original}"', f'"policy": "{request.param}"'))
    with running(file, "--set", "max_running=4", log=folder / "log", before=variables) as server:
        yield server, folder / "log"


def body(number: int) -> dict[str, Any]:
    """Every third request fails in the target, every other third in the draft, if there is one of its own."""
    prompt = "TDx"[number % 3] + f" = {random.Random(number).randrange(10**6)}\n"
    return {
        "prompt": prompt * (1 + number % 4),
        "max_tokens": 40,
        "temperature": (0, 0.8)[number % 2],
        "seed": number,
        "ignore_eos": True,
        "stream": number % 5 == 0,
    }


def said(server: Running, asked: dict[str, Any]) -> tuple[str, str]:
    """The text of an answer, and its error."""
    with server.ask("/v1/completions", asked) as answer:
        if not asked["stream"]:
            found = json.loads(answer.read())
            assert (answer.status == 200) == ("choices" in found)
            return ("", found["error"]["message"]) if "error" in found else (found["choices"][0]["text"], "")
        chunks = list(events(answer)) if answer.status == 200 else [json.loads(answer.read())]
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks if "choices" in chunk)
        return text, "".join(chunk["error"]["message"] for chunk in chunks if "error" in chunk)


def test_errors_of_programs_end_their_own_requests(faulty: tuple[Running, Path]) -> None:
    server, log = faulty
    alone = {number: said(server, body(number)) for number in range(2, NUM_REQUESTS, 3)}
    assert all(len(text) > 30 and not error for text, error in alone.values())
    with ThreadPoolExecutor(10) as threads:
        together = list(threads.map(lambda number: said(server, body(number)), range(NUM_REQUESTS)))
    for number, expected in alone.items():
        assert together[number] == expected
    failed = [error for _, error in together[0::3]]
    # Some go on without their draft, and so without the program that fails.
    assert set(failed) <= {"", "the engine failed while this request ran; the server's log says why"}
    assert any(failed)
    assert not any(error for _, error in together[1::3])  # a draft that is gone costs speed
    assert all(len(text) > 30 for text, _ in together[1::3])
    assert SAYS in log.read_text()
    server.wait_until_idle(within_s=60.0)
    assert server.process.poll() is None


def test_a_client_that_leaves_a_failing_request_leaves_nothing(faulty: tuple[Running, Path]) -> None:
    server, _ = faulty
    halt = threading.Event()

    def leave() -> None:
        for number in range(0, 40, 3):
            connection = server.connect()
            connection.request(
                "POST", "/v1/completions", json.dumps(body(number)), {"content-type": "application/json"}
            )
            halt.wait(0.005 * (number % 7))
            connection.close()

    threads = [threading.Thread(target=leave) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.wait_until_idle(within_s=60.0)
    text, error = said(server, body(2))
    assert (len(text) > 30, error) == (True, "")
