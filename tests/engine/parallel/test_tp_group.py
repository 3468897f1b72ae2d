"""Ranks of a TP group sum, gather and tell, and notice at once that one of them is gone."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import Mock, call

import pytest
import torch
from torch import Tensor

from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.sharded_model import ShardedModel, follow
from swiftspec.engine.parallel.tp_group import NoOpTPGroup, TPGroup
from swiftspec.policies.effects import ForwardKind, Role, Row
from tests.engine.ranks import Ranks, joined_ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with joined_ranks(3) as processes:
        yield processes


def part(rank: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(4, 33, generator=torch.Generator().manual_seed(rank)).to(dtype)


def summed(tp_group: TPGroup, dtype: torch.dtype) -> Tensor:
    return tp_group.all_reduce(part(tp_group.rank, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_is_in_fp32_and_has_the_same_bits_everywhere(ranks: Ranks, dtype: torch.dtype) -> None:
    first, *others = ranks.run(summed, dtype)
    assert first.dtype == torch.float32
    torch.testing.assert_close(first, sum((part(rank, dtype).float() for rank in range(3)), torch.zeros(())))
    assert all(torch.equal(first, other) for other in others)


def gathered(tp_group: TPGroup) -> Tensor:
    return tp_group.gather(part(tp_group.rank, torch.float32), 90)


def test_columns_are_gathered_at_rank_0(ranks: Ranks) -> None:
    whole, *others = ranks.run(gathered)
    parts = [part(rank, torch.float32) for rank in range(3)]
    assert torch.equal(whole, torch.cat(parts, -1)[:, :90])
    assert all(torch.equal(other, own) for other, own in zip(others, parts[1:], strict=True))


def silently(tp_group: TPGroup) -> tuple[Tensor, Tensor]:
    silent = NoOpTPGroup(tp_group)
    own = part(tp_group.rank, torch.float32)
    return silent.all_reduce(own), silent.gather(own, 90)


def test_a_silent_tp_group_leaves_every_rank_with_its_own_in_the_shapes_of_all(ranks: Ranks) -> None:
    for rank, (reduced, gathered) in enumerate(ranks.run(silently)):
        own = part(rank, torch.float32)
        assert torch.equal(reduced, own)
        assert torch.equal(gathered, torch.cat([own] * 3, -1)[:, :90] if rank == 0 else own)


def told(tp_group: TPGroup, commands: list[bytes]) -> list[bytes]:
    if not tp_group.is_leader:
        return list(iter(tp_group.receive_command, b""))
    for command in commands:
        tp_group.broadcast(command)
    tp_group.stop_followers()
    return commands


def test_followers_hear_all_notes_short_and_long(ranks: Ranks) -> None:
    commands = [b"a", bytes(1024), bytes(range(256)) * 5, b"z" * 100_000, b"b"]
    assert ranks.run(told, commands) == [commands] * 3


def until_gone(tp_group: TPGroup) -> float:
    """Seconds until a sum with a rank that ends itself is refused."""
    if tp_group.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    start_s = time.perf_counter()
    with pytest.raises(ConnectionError, match="gone"):
        tp_group.all_reduce(torch.ones(3))
    return time.perf_counter() - start_s


def until_leaderless(tp_group: TPGroup) -> float:
    if tp_group.is_leader:
        os.kill(os.getpid(), signal.SIGKILL)
    start_s = time.perf_counter()
    with pytest.raises(ConnectionError, match="gone"):
        tp_group.receive_command()
    return time.perf_counter() - start_s


def test_a_dead_rank_is_noticed_at_once() -> None:
    with joined_ranks(3) as doomed:
        waits = doomed.start(until_gone)
        assert max(wait.result(timeout=60) for wait in waits[:2]) < 20


def test_a_dead_leader_ends_the_listening() -> None:
    with joined_ranks(2) as doomed:
        assert doomed.start(until_leaderless)[1].result(timeout=60) < 20


def test_a_tp_group_of_one_sums_and_gathers_what_it_has() -> None:
    tp_group, x = TPGroup.join("file:///nowhere", rank=0, size=1, device="cpu"), torch.ones(2, 3)
    assert tp_group.is_leader
    assert tp_group.all_reduce(x) is x
    assert tp_group.gather(x, 3) is x


@pytest.mark.parametrize("store", ["nowhere", "file://host/path", "tcp://127.0.0.1:80", "tcp://127.0.0.1/TP group"])
def test_a_store_has_an_address(store: str) -> None:
    with pytest.raises(ValueError, match=r"store is .*; expected file:///path or tcp://host:port/prefix"):
        TPGroup.join(store, rank=0, size=2, device="cpu")


def test_a_rank_is_one_of_the_tp_group() -> None:
    with pytest.raises(ValueError, match="rank is 2; expected 0 to 1"):
        TPGroup.join("file:///nowhere", rank=2, size=2, device="cpu")


ROWS = (Row(7, 300, 1 << 511), Row(2**31 - 1, 0, 0), Row(0, 5, 0b1011))


def repeated(role: Role, called: str, *arguments: object) -> list[object]:
    """What is called on a follower's shard when something is called on the leader's model."""
    told: list[bytes] = []
    getattr(ShardedModel(Mock(), Mock(broadcast=told.append), role), called)(*arguments)
    follower = Mock()
    follow({role: follower}, Mock(receive_command=Mock(side_effect=[*told, b""])))
    return [*follower.mock_calls]


@pytest.mark.parametrize(
    ("role", "called", "arguments"),
    [
        (Role.DRAFT, "reset", (3, 2)),
        (Role.DRAFT, "keep", (2, (4, 0), 1)),
        (Role.TARGET, "keep", (0, (), 0)),
    ],
)
def test_a_command_says_what_was_called(role: Role, called: str, arguments: tuple[object, ...]) -> None:
    assert repeated(role, called, *arguments) == [getattr(call, called)(*arguments)]


@pytest.mark.parametrize(
    ("role", "batch"),
    [
        (Role.TARGET, ForwardBatch(ForwardKind.EXACT, (Chunk(0, (1, 2, 3)),))),
        (Role.TARGET, ForwardBatch(ForwardKind.EXACT, (Rows(5, ROWS), Chunk(1, (1, 2, 3)), Rows(2, ROWS[1:])))),
        (Role.TARGET, ForwardBatch(ForwardKind.EXACT, (Chunk(0, (1, 2), all_logits=True), Chunk(1, (3,))))),
        (Role.DRAFT, ForwardBatch(ForwardKind.LAYER_PARALLEL, (Rows(0, ROWS[1:2]),))),
        (Role.TARGET, ForwardBatch(ForwardKind.FIRST_HALF, (Rows(1, ROWS[:1]), Rows(0, ROWS[2:])))),
    ],
)
def test_a_command_has_the_whole_batch(role: Role, batch: ForwardBatch) -> None:
    assert repeated(role, "forward", batch) == [call.forward(batch)]


def test_followers_are_not_asked_for_candidates() -> None:
    """They have a part of the logits."""
    batch = ForwardBatch(ForwardKind.EXACT, (Rows(0, ROWS),), top_k=8)
    assert repeated(Role.DRAFT, "forward", batch) == [call.forward(replace(batch, top_k=0))]
