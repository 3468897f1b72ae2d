"""A model on all ranks of a TP group: the leader runs the program and broadcasts its calls; the followers repeat them.

A command names the call and the model, since co-located roles share their ranks. Packed numbers, no pickle.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple

from swiftspec.engine.model.protocol import Model
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.policies.effects import Role, Row

__all__ = ["ShardedModel", "follow"]

_HEAD = struct.Struct("<5i")  # call, role, count of numbers, an extra number, bytes of a mask
_ROLES = tuple(Role)


class _Call(IntEnum):
    RESET = 0
    PREFILL = 1
    FORWARD = 2
    FUZZY = 3
    EXIT = 4
    FINISH = 5
    KEEP = 6


class _Command(NamedTuple):
    """A call and its arguments: tokens of a prefill, slots to keep, or rows."""

    call: _Call
    role: Role
    numbers: Sequence[int] = ()
    num_verified: int = 0
    rows: Sequence[Row] = ()


class ShardedModel:
    """A model whose shards are on the ranks of a TP group, as its leader drives it: `protocol.Model`.

    Parameters
    ----------
    model : Model
        The leader's shard. Its logits are the whole model's.
    role : Role
        Role by which the followers know the model.
    """

    def __init__(self, model: Model, tp_group: TPGroup, role: Role) -> None:
        self._model = model
        self._tp_group = tp_group
        self._role = role

    def reset(self) -> None:
        """Forget every cached token."""
        self._send(_Call.RESET)
        self._model.reset()

    def prefill(self, tokens: tuple[int, ...]) -> Any:
        """Put tokens into the prefix; logits after the last one, (vocab,)."""
        self._send(_Call.PREFILL, numbers=tokens)
        return self._model.prefill(tokens)

    def forward(self, rows: tuple[Row, ...], *, fuzzy: bool = False) -> Any:
        """Append rows to the tree; logits (rows, vocab)."""
        self._send(_Call.FUZZY if fuzzy else _Call.FORWARD, rows=rows)
        return self._model.forward(rows, fuzzy=fuzzy)

    def exit(self, rows: tuple[Row, ...]) -> Any:
        """The first half of a forward; its logits (rows, vocab)."""
        self._send(_Call.EXIT, rows=rows)
        return self._model.exit(rows)

    def finish(self) -> Any:
        """The other half; the forward's logits (rows, vocab)."""
        self._send(_Call.FINISH)
        return self._model.finish()

    def candidates(self, logits: Any, num_candidates: int) -> tuple[list[list[int]], list[list[float]]]:
        """Most likely tokens after each row and their log-probs: only the leader has logits."""
        return self._model.candidates(logits, num_candidates)

    def keep(self, slots: tuple[int, ...], num_verified: int) -> None:
        """Compact the cache."""
        self._send(_Call.KEEP, numbers=slots, num_verified=num_verified)
        self._model.keep(slots, num_verified)

    def _send(self, call: _Call, **values: Any) -> None:
        self._tp_group.broadcast(_encoded(_Command(call, self._role, **values)))


def follow(models: Mapping[Role, Model], tp_group: TPGroup) -> None:
    """Repeat the leader's calls on this rank's shards, until dismissed or a rank is gone."""
    try:
        while command := tp_group.receive_command():
            _obey(_decoded(command), models)
    except ConnectionError:
        return  # the leader notices too, unless it is the rank that is gone


def _obey(command: _Command, models: Mapping[Role, Model]) -> None:
    model, rows, numbers = models[command.role], tuple(command.rows), tuple(command.numbers)
    calls: dict[_Call, Callable[[], Any]] = {
        _Call.RESET: model.reset,
        _Call.PREFILL: lambda: model.prefill(numbers),
        _Call.FORWARD: lambda: model.forward(rows),
        _Call.FUZZY: lambda: model.forward(rows, fuzzy=True),
        _Call.EXIT: lambda: model.exit(rows),
        _Call.FINISH: model.finish,
        _Call.KEEP: lambda: model.keep(numbers, command.num_verified),
    }
    # For example no room: the leader's shard has refused the same call, and the leader reports it.
    with suppress(ValueError):
        calls[command.call]()


def _encoded(command: _Command) -> bytes:
    numbers = [*command.numbers, *(row.token for row in command.rows), *(row.position for row in command.rows)]
    width = max(((row.ancestors.bit_length() + 7) // 8 for row in command.rows), default=0)
    beside = len(command.rows) or command.num_verified
    head = _HEAD.pack(command.call, _ROLES.index(command.role), len(numbers), beside, width)
    return (
        head + array("i", numbers).tobytes() + b"".join(row.ancestors.to_bytes(width, "little") for row in command.rows)
    )


def _decoded(told: bytes) -> _Command:
    call, role, num_numbers, beside, width = _HEAD.unpack_from(told)
    numbers = array("i", told[_HEAD.size : _HEAD.size + 4 * num_numbers])
    if call not in (_Call.FORWARD, _Call.FUZZY, _Call.EXIT):
        return _Command(_Call(call), _ROLES[role], numbers=numbers, num_verified=beside)
    masks = told[_HEAD.size + 4 * num_numbers :]
    ancestors = [int.from_bytes(masks[row * width : (row + 1) * width], "little") for row in range(beside)]
    return _Command(_Call(call), _ROLES[role], rows=tuple(map(Row, numbers[:beside], numbers[beside:], ancestors)))
