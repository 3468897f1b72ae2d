"""A model on all ranks of a TP group: the leader runs the program and broadcasts its calls; the followers repeat them.

A command names the call and the model, since co-located roles share their ranks. Packed numbers, no pickle.
"""

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import islice

from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Model, Rows
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.policies.effects import ForwardKind, Role, Row

_HEAD = struct.Struct("<4i")  # call, role, count of numbers, bytes of a mask
_ROLES = tuple(Role)
_KINDS = tuple(ForwardKind)


class _Call(IntEnum):
    FORWARD = 0
    KEEP = 1
    RESET = 2


class ShardedModel(Model):
    """A model whose shards are on the ranks of a TP group, as its leader drives it. model: the leader's shard."""

    def __init__(self, model: Model, tp_group: TPGroup, role: Role) -> None:
        self._model = model
        self._tp_group = tp_group
        self._role = role

    def forward(self, batch: ForwardBatch) -> BatchResult:
        self._model.check(batch)  # before the followers compute what the leader refuses
        rows = [row for entry in batch.entries if isinstance(entry, Rows) for row in entry.rows]
        width = max([1, *((row.ancestors.bit_length() + 7) // 8 for row in rows)])
        masks = b"".join(row.ancestors.to_bytes(width, "little") for row in rows)
        self._send(_Call.FORWARD, _numbers_of(batch), width, masks)
        return self._model.forward(batch)

    def check(self, batch: ForwardBatch) -> None:
        self._model.check(batch)

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        self._send(_Call.KEEP, [sequence, num_verified, *slots])
        self._model.keep(sequence, slots, num_verified)

    def reset(self, sequence: int, tenant: int = 0) -> None:
        self._send(_Call.RESET, [sequence, tenant])
        self._model.reset(sequence, tenant)

    def _send(self, call: _Call, numbers: Sequence[int], width: int = 1, masks: bytes = b"") -> None:
        head = _HEAD.pack(call, _ROLES.index(self._role), len(numbers), width)
        self._tp_group.broadcast(head + array("i", numbers).tobytes() + masks)


def follow(models: Mapping[Role, Model], tp_group: TPGroup) -> None:
    """Repeat the leader's calls on this rank's shards, until dismissed or a rank is gone."""
    try:
        while told := tp_group.receive_command():
            # For example no room: the leader's shard has refused the same call, and the leader reports it.
            with suppress(ValueError):
                _obey(models, told)
    except ConnectionError:
        return  # the leader notices too, unless it is the rank that is gone


def _obey(models: Mapping[Role, Model], told: bytes) -> None:
    call, role, num_numbers, width = _HEAD.unpack_from(told)
    end = _HEAD.size + 4 * num_numbers
    model, numbers, masks = models[_ROLES[role]], array("i", told[_HEAD.size : end]), told[end:]
    match call:
        case _Call.FORWARD:
            ancestors = (int.from_bytes(masks[at : at + width], "little") for at in range(0, len(masks), width))
            model.forward(_batch_of(numbers, ancestors))
        case _Call.KEEP:
            sequence, num_verified, *slots = numbers
            model.keep(sequence, tuple(slots), num_verified)
        case _:
            model.reset(*numbers)


def _numbers_of(batch: ForwardBatch) -> list[int]:
    """A batch but for its masks, and its `top_k`: only the leader has whole logits to find candidates in."""
    numbers = [_KINDS.index(batch.kind)]
    for entry in batch.entries:
        numbers += entry.sequence, 1 + entry.all_logits if isinstance(entry, Chunk) else 0, entry.num_rows
        if isinstance(entry, Chunk):
            numbers += entry.tokens
        else:
            numbers += (row.token for row in entry.rows)
            numbers += (row.position for row in entry.rows)
    return numbers


def _batch_of(numbers: Iterable[int], ancestors: Iterator[int]) -> ForwardBatch:
    left = iter(numbers)
    kind = _KINDS[next(left)]
    entries: list[Entry] = []
    for sequence in left:
        chunk, num_rows = next(left), next(left)  # 0: rows; 1: a chunk; 2: one that wants all logits
        tokens = tuple(islice(left, num_rows))
        if chunk:
            entries.append(Chunk(sequence, tokens, all_logits=chunk > 1))
        else:
            entries.append(Rows(sequence, tuple(map(Row, tokens, islice(left, num_rows), ancestors))))
    return ForwardBatch(kind, tuple(entries))
