"""The class that vLLM makes: its configuration, and that nothing of it can end vLLM."""

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from swiftspec.drafter import Drafter
from swiftspec.engine.channel.curve import Curve, read_secret, write_secret
from swiftspec.engine.channel.introduction import Introduction
from swiftspec.machine import free_port
from swiftspec.policies.asynchronous.swiftspec_chain import SwiftSpecChain
from tests.drafter.stepped_engine import VOCAB_SIZE, SteppedEngine, draft_server, expected_output, session

PROMPT = (1, 2, 3)


def config(settings: Any, *, rank: int = 0, tokenizer: str = "nowhere", num_draft_tokens: int = 4) -> SimpleNamespace:
    """As much of vLLM's as is read."""
    return SimpleNamespace(
        additional_config=settings,
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=2),
        speculative_config=SimpleNamespace(num_speculative_tokens=num_draft_tokens),
        model_config=SimpleNamespace(get_vocab_size=lambda: VOCAB_SIZE, max_model_len=512, tokenizer=tokenizer),
    )


class _AsSession:
    """vLLM's call, for an engine that has a session."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter

    def propose(self, rows: Any) -> list[tuple[int, ...]]:
        texts: Any = np.array([row.tokens for row in rows])
        lengths: Any = np.array([row.length for row in rows])
        drafts = self._drafter.propose([row.sampled for row in rows], lengths, texts, slot_mappings=None)
        return list(map(tuple, drafts))


def test_it_drafts_as_vllm_calls_it(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path / 'draft'}"
    with draft_server(address, SwiftSpecChain(num_draft_tokens=4)):
        drafter = Drafter(config({"swiftspec": {"address": address, "limit_ms": 200}}, rank=2))
        drafter.load_model("a model", device="cpu")
        engine = SteppedEngine(_AsSession(drafter))  # type: ignore[arg-type]  # it has what is called
        engine.join("a", PROMPT, 400)
        engine.run()
        assert engine.outputs["a"] == expected_output(PROMPT, 400)
        assert engine.accepted > 10


def test_only_an_engine_with_the_secret_has_drafts(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for path in (mine, other):
        write_secret(path)
    address = f"tcp://127.0.0.1:{free_port()}"
    accepted = {}
    with draft_server(address, SwiftSpecChain(num_draft_tokens=4), curve=Curve.derived(read_secret(mine))):
        for path in (other, mine):
            drafter = Drafter(config({"swiftspec": {"address": address, "secret_file": str(path), "limit_ms": 200}}))
            engine = SteppedEngine(_AsSession(drafter))  # type: ignore[arg-type]  # it has what is called
            engine.join("a", PROMPT, 400)
            engine.run()
            assert engine.outputs["a"] == expected_output(PROMPT, 400)
            accepted[path] = engine.accepted
    assert accepted[other] == 0
    assert accepted[mine] > 10


def test_ranks_that_the_scheduler_does_not_ask_have_no_server(tmp_path: Path) -> None:
    drafter = Drafter(config({"swiftspec": {"address": f"ipc://{tmp_path / 'draft'}"}}, rank=1))
    assert drafter.propose([[1], []], [2, 3], [[0, 1], [0, 1, 2]]) == [[], []]


def test_what_goes_wrong_in_a_step_is_logged_once_and_decoding_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = Drafter(config({"swiftspec": {"address": f"ipc://{tmp_path / 'draft'}"}}))
    for _ in range(3):
        assert drafter.propose([[1]], [10], [[0, 1]]) == [[]]  # a text that is shorter than it says
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "drafting has failed; decoding goes on without drafts"
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (None, '--additional-config has no "swiftspec"; expected'),
        ({"swiftspec": {}}, "swiftspec.address is None; expected ipc://FILE or tcp://HOST:PORT"),
        ({"swiftspec": {"address": "ipc://x", "depth": 1}}, "swiftspec.depth is unknown; expected "),
        ({"swiftspec": {"address": "ipc://x", "limit_ms": -1}}, "swiftspec.limit_ms is -1; expected a positive number"),
        ({"swiftspec": {"address": "tcp://127.0.0.1:9", "secret_file": "no"}}, "no: cannot be read"),
        ({"swiftspec": {"address": "nowhere"}}, "nowhere: cannot be connected"),
    ],
)
def test_settings_that_are_wrong_are_one_sentence(settings: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Drafter(config(settings))


@pytest.mark.parametrize(
    ("policy", "facts", "sentence"),
    [
        (SwiftSpecChain(num_draft_tokens=4), {"vocabulary": "another"}, "its draft has another vocabulary"),
        (SwiftSpecChain(num_draft_tokens=4), {"vocab_size": 5000}, "its draft has a vocabulary of 5000 tokens"),
        (
            SwiftSpecChain(num_draft_tokens=3),
            {},
            "num_speculative_tokens is 4, and swiftspec_chain there sends at most 3",
        ),
        (SwiftSpecChain(num_draft_tokens=4), {}, ""),
    ],
)
def test_a_server_is_used_if_it_suits(
    tmp_path: Path, policy: SwiftSpecChain, facts: dict[str, Any], sentence: str
) -> None:
    usual = {"vocab_size": VOCAB_SIZE, "vocabulary": "mine", "num_requests": 4, "max_context": 512}
    server = Introduction.of(policy, **(usual | facts))
    with session(f"ipc://{tmp_path}/draft", vocabulary="mine") as drafts:
        found = drafts._objection(server)
    assert found.startswith(sentence)
    assert bool(found) == bool(sentence)


def test_it_loads_nothing_heavy() -> None:
    heavy = "torch transformers triton scipy simpy matplotlib"
    code = f"import sys, swiftspec.drafter; print([name for name in '{heavy}'.split() if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
