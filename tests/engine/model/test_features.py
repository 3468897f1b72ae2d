"""Features on their way to a head in another process: what is sent, what is refused, and what the head makes of it."""

import struct
from pathlib import Path

import pytest
import torch

from swiftspec.engine.model.drafts.features import FeatureReceiver, FeatureSender, FeatureStore, most_payload_bytes
from swiftspec.engine.model.drafts.head_runner import HeadRunner
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.models import load_models
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import ForwardKind, Role, Row, Stop, Verdict
from tests.engine.checkpoints import write_checkpoint
from tests.engine.heads import LAYOUTS, Reference, write_head

TEXT = (5, 17, 40, 8, 61, 33, 2, 70, 19, 54, 11, 28)
EXACT = ForwardKind.EXACT
WIDTH = 3


def payload(first: int, num_numbers: int) -> bytes:
    return struct.pack(f"<I{num_numbers}f", first, *range(num_numbers))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_apart_computes_what_its_definition_says(tmp_path: Path, layout: str) -> None:
    path = write_checkpoint(tmp_path / "target", "llama")
    head = write_head(tmp_path / "head", path, layout)
    target, draft = (ModelRef(model=str(model), dtype="float32") for model in (path, head))
    theirs = load_models({Role.TARGET: target}, elsewhere={Role.DRAFT: draft}, max_context=64, tree_slots=16)
    ours = load_models({Role.DRAFT: draft}, elsewhere={Role.TARGET: target}, max_context=64, tree_slots=16)
    runner, apart = theirs[Role.TARGET], ours[Role.DRAFT]
    assert isinstance(runner, ModelRunner)
    assert isinstance(apart, HeadRunner)
    assert (list(theirs), list(ours)) == ([Role.TARGET], [Role.DRAFT])
    (store,) = apart.target
    assert isinstance(store, FeatureStore)
    sender, receiver = FeatureSender(runner.caches[0]), FeatureReceiver(store, num_prompt_tokens=5)
    reference = Reference(head, path, layout)

    def check(row: Row, *text: int, num_verified: int) -> None:
        (logits,) = apart.forward(ForwardBatch(EXACT, (Rows(0, (row,)),))).logits[0]
        expected = reference.logits(text, num_verified=num_verified)
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)

    def send(verdict: Verdict) -> None:
        sent = sender.outgoing(verdict)
        assert len(sent) <= most_payload_bytes(store)
        assert receiver.takes(verdict, sent)

    runner.forward(ForwardBatch(EXACT, (Chunk(0, TEXT[:5]),)))
    send(Verdict(()))
    apart.forward(ForwardBatch(EXACT, (Chunk(0, TEXT[:5]),)))
    check(Row(TEXT[5], 5, 0), *TEXT[:6], num_verified=5)
    apart.keep(0, (0,), 1)
    check(Row(9, 6, 0), *TEXT[:6], 9, num_verified=5)  # on its own hidden states
    runner.forward(ForwardBatch(EXACT, (Rows(0, (Row(TEXT[5], 5, 0), Row(7, 6, 0b1), Row(9, 6, 0b1))),)))
    runner.keep(0, (0, 2), 2)
    send(Verdict((9, 3)))
    apart.keep(0, (), 0)
    check(Row(9, 6, 0), *TEXT[:6], 9, num_verified=7)
    check(Row(3, 7, 0b1), *TEXT[:6], 9, 3, num_verified=7)


def test_a_verdict_takes_what_none_took_before() -> None:
    cache = FeatureStore(capacity=8, width=WIDTH)
    cache.features.copy_(torch.arange(8 * WIDTH).view(8, WIDTH))
    sender = FeatureSender(cache)
    cache.prefix_length = 2
    assert sender.outgoing(Stop()) == b""
    assert sender.outgoing(Verdict(())) == payload(0, 2 * WIDTH)
    assert sender.outgoing(Verdict(())) == payload(2, 0)
    cache.prefix_length = 3
    sent = sender.outgoing(Verdict((4,)))
    assert (sent[:4], torch.frombuffer(bytearray(sent[4:]), dtype=torch.float32).tolist()) == (
        struct.pack("<I", 2),
        cache.features[2].tolist(),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        payload(0, 2 * WIDTH)[:-1],
        payload(0, 2 * WIDTH) + b"\0" * 4,
        payload(0, WIDTH),
        payload(0, 3 * WIDTH),
        payload(1, 2 * WIDTH),
    ],
)
def test_what_was_not_due_is_refused_and_not_stored(wrong: bytes) -> None:
    store = FeatureStore(capacity=8, width=WIDTH)
    receiver = FeatureReceiver(store, num_prompt_tokens=2)
    assert not receiver.takes(Verdict(()), wrong)
    assert (store.prefix_length, store.features.any().item()) == (0, False)


def test_a_store_takes_no_more_than_it_holds_and_is_emptied_by_the_next_request() -> None:
    store = FeatureStore(capacity=4, width=WIDTH)
    receiver = FeatureReceiver(store, num_prompt_tokens=3)
    assert receiver.takes(Verdict(()), payload(0, 3 * WIDTH))
    assert receiver.takes(Stop(), b"")
    assert not receiver.takes(Stop(), b"x")
    assert not receiver.takes(Verdict((1, 2)), payload(3, 2 * WIDTH))
    assert store.prefix_length == 3
    FeatureReceiver(store, num_prompt_tokens=0)
    assert store.prefix_length == 0
