"""Drafts of a server for an engine's requests: they are used, and whatever goes wrong costs drafts, never output."""

import gc
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import zmq

from swiftspec.drafter.drafted_request import DraftedRequest
from swiftspec.policies import POLICIES
from swiftspec.policies.asynchronous.ssd import Ssd
from swiftspec.policies.asynchronous.swiftspec_chain import SwiftSpecChain
from swiftspec.policies.base import Policy, drafts_elsewhere
from swiftspec.policies.recovery import ServedDraft
from tests.drafter.stepped_engine import (
    VOCAB_SIZE,
    GuessingModel,
    SteppedEngine,
    draft_server,
    expected_output,
    meet,
    session,
)

PROMPTS = {"a": (1, 2, 3), "b": (1, 2, 3), "c": tuple(range(90)), "d": (7,), "e": (5, 6)}
SERVED = [policy() for policy in POLICIES.values() if drafts_elsewhere(policy())]
CHAIN = SwiftSpecChain(num_draft_tokens=4)


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'draft'}"


def until(holds: Callable[[], bool], engine: SteppedEngine, within_s: float = 10.0) -> None:
    """Step until something holds."""
    until_s = time.perf_counter() + within_s
    while not holds():
        assert time.perf_counter() < until_s
        engine.step()
        time.sleep(0.005)


def has_accepted(engine: SteppedEngine, num_tokens: int) -> bool:
    return engine.accepted >= num_tokens


def assert_right(engine: SteppedEngine, num_tokens: int = 60) -> None:
    for name, output in engine.outputs.items():
        assert output == expected_output(PROMPTS[name], num_tokens), name


@pytest.mark.parametrize("policy", SERVED, ids=lambda policy: policy.name)
def test_every_policy_that_sends_chains_drafts_for_several_requests(address: str, policy: Policy) -> None:
    with draft_server(address, policy, num_requests=6) as server, session(address, num_draft_tokens=3) as drafts:
        meet(drafts)
        engine = SteppedEngine(drafts)
        for name, prompt in PROMPTS.items():
            engine.join(name, prompt, 60)
        engine.run()
        assert_right(engine)
        assert engine.accepted > 30, "of 300 tokens; more on a machine that is not busy"
    assert server.stats.rounds > 10
    assert server.stats.tokens > 30


def test_requests_join_leave_and_come_back(address: str) -> None:
    with draft_server(address, CHAIN, num_requests=3) as server, session(address) as drafts:
        meet(drafts)
        engine = SteppedEngine(drafts)
        for name in "abcde":  # two more than the server has room for
            engine.join(name, PROMPTS[name], 60)
            engine.step(reading=name)
        engine.leave("b")
        for _ in range(10):
            engine.step()
        engine.join("b", PROMPTS["b"], 60)
        engine.run()
        assert_right(engine)
        assert len(engine.outputs) == 5
        assert engine.accepted > 30
        drafts.propose([])
        until(lambda: not len(server._driver), engine)


def test_a_server_that_is_never_idle_keeps_nothing_of_requests_that_have_ended(address: str) -> None:
    with draft_server(address, CHAIN, num_requests=4) as server, session(address) as drafts:
        meet(drafts)
        engine = SteppedEngine(drafts)
        engine.join("long", (3, 4), 480)
        engine.step()
        for number in range(160):
            engine.join(f"short {number}", (number % VOCAB_SIZE, 9), 4)
            while len(engine.names) > 1:
                engine.step()
            if engine.lengths[0] > 400:
                engine.leave("long")
                engine.join("long", (3, number % VOCAB_SIZE), 480)
        until(lambda: server.stats.requests > 100, engine)
        kept = sum(isinstance(each, ServedDraft | DraftedRequest) for each in gc.get_objects())
    assert kept < 100, "160 requests have two parts each"


def test_without_a_server_decoding_is_plain_and_one_sentence_says_so(
    address: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftspec.drafter.session._SAY_AFTER_S", 0.05)
    with session(address) as drafts:
        engine = SteppedEngine(drafts)
        engine.join("a", PROMPTS["a"], 60)
        time.sleep(0.6)
        engine.run()
        assert_right(engine)
        assert engine.drafted == 0
        assert [record.message for record in caplog.records] == [
            f"nobody answers at {address}: no draft server runs there, or it has another secret; "
            "decoding goes on without drafts"
        ]
        with draft_server(address, CHAIN):  # it may come later
            engine.join("c", PROMPTS["c"], 400)
            until(lambda: engine.accepted > 10, engine)


def test_a_server_that_does_not_suit_is_not_used(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with draft_server(address, CHAIN, vocabulary="another"), session(address, vocabulary="mine") as drafts:
        engine = SteppedEngine(drafts)
        engine.join("a", PROMPTS["a"], 60)
        until(lambda: bool(caplog.records), engine)
        engine.run()
        assert_right(engine)
        assert engine.drafted == 0
    assert [record.message for record in caplog.records] == [
        f"the draft server at {address} is not used: its draft has another vocabulary than this model; "
        "decoding goes on without drafts"
    ]


def test_a_server_that_is_replaced_by_one_with_another_policy_drafts_on(address: str) -> None:
    with session(address, num_draft_tokens=3, limit_s=0.05) as drafts:
        engine = SteppedEngine(drafts)
        engine.join("c", PROMPTS["c"], 400)
        for policy in (CHAIN, Ssd(num_draft_tokens=3), CHAIN):
            with draft_server(address, policy):
                until(partial(has_accepted, engine, engine.accepted + 10), engine)
        engine.run()
        assert engine.outputs["c"] == expected_output(PROMPTS["c"], 400)


def test_no_step_waits_longer_than_the_limit_for_a_server_that_hangs(address: str) -> None:
    longest_s = 0.0
    model = GuessingModel()
    with draft_server(address, CHAIN, model=model), session(address, limit_s=0.1) as drafts:
        engine = SteppedEngine(drafts)
        for name in "ace":
            engine.join(name, PROMPTS[name], 60)
        until(lambda: engine.accepted > 10, engine)
        model.hangs_s.append(2.0)
        for _ in range(10):
            began_s = time.perf_counter()
            engine.step()
            longest_s = max(longest_s, time.perf_counter() - began_s)
        engine.run()
        assert_right(engine)
    assert 0.09 < longest_s < 0.3


def test_nonsense_is_survived(address: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    with session(address, limit_s=0.05) as drafts:
        socket.bind(address)
        engine = SteppedEngine(drafts)
        engine.join("c", PROMPTS["c"], 60)
        while engine.names:
            for _ in range(20):
                heard = socket.recv_multipart() if socket.poll(1) else [secrets.token_bytes(17)]
                head = bytearray(heard[0])
                head[12] = secrets.randbelow(8)  # the kind of message
                frames = [bytes(head), secrets.token_bytes(secrets.randbelow(40))][: 1 + secrets.randbelow(2)]
                with suppress(zmq.Again):
                    socket.send_multipart(frames, zmq.NOBLOCK)
            engine.step()
        assert_right(engine)
    socket.close()
    context.term()


def test_errors_of_the_log_are_none(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), draft_server(address, CHAIN), session(address) as drafts:
        meet(drafts)
        engine = SteppedEngine(drafts)
        engine.join("a", PROMPTS["a"], 60)
        engine.run()
    assert [record.levelname for record in caplog.records] == ["INFO"], "it says which policy drafts"
