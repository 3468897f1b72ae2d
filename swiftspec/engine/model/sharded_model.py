"""A model on all ranks of a TP group: the leader runs the program and broadcasts its calls; the followers repeat them.

A command is JSON: the name of the call and the model, since co-located roles share their ranks, and the arguments.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from swiftspec.engine.model.forward_batch import BatchResult, Chunk, ForwardBatch, Model, Rows
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.policies.effects import ForwardKind, Role, Row

_JSON = json.JSONDecoder()  # of messages of our own, whose masks are numbers of any length


class ShardedModel(Model):
    """A model whose shards are on the ranks of a TP group, as its leader drives it. model: the leader's shard."""

    def __init__(self, model: Model, tp_group: TPGroup, role: Role) -> None:
        self._model = model
        self._tp_group = tp_group
        self._role = role

    def forward(self, batch: ForwardBatch) -> BatchResult:
        self._model.check(batch)  # before the followers compute what the leader refuses
        # Without its `top_k`: only the leader has whole logits to find candidates in.
        self._send("forward", batch.kind, [(isinstance(entry, Chunk), *entry) for entry in batch.entries])
        return self._model.forward(batch)

    def check(self, batch: ForwardBatch) -> None:
        self._model.check(batch)

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        self._send("keep", sequence, slots, num_verified)
        self._model.keep(sequence, slots, num_verified)

    def reset(self, sequence: int, tenant: int = 0) -> None:
        self._send("reset", sequence, tenant)
        self._model.reset(sequence, tenant)

    def _send(self, call: str, *arguments: Any) -> None:
        self._tp_group.broadcast(json.dumps((call, self._role, *arguments), separators=(",", ":")).encode())


def follow(models: Mapping[Role, Model], tp_group: TPGroup) -> None:
    """Repeat the leader's calls on this rank's shards, until dismissed or a rank is gone."""
    try:
        while told := tp_group.receive_command():
            # For example no room: the leader's shard has refused the same call, and the leader reports it.
            with suppress(ValueError):
                call, role, *arguments = _JSON.decode(told.decode())
                _repeat(models[role], call, arguments)
    except ConnectionError:
        return  # the leader notices too, unless it is the rank that is gone


def _repeat(model: Model, call: str, arguments: Iterable[Any]) -> None:
    match call, *arguments:
        case "forward", kind, entries:
            model.forward(ForwardBatch(ForwardKind(kind), tuple(_entry(*entry) for entry in entries)))
        case "keep", sequence, slots, num_verified:
            model.keep(sequence, tuple(slots), num_verified)
        case "reset", sequence, tenant:
            model.reset(sequence, tenant)


def _entry(is_chunk: bool, sequence: int, content: Iterable[Any], all_logits: bool = False) -> Chunk | Rows:
    if is_chunk:
        return Chunk(sequence, tuple(content), all_logits)
    return Rows(sequence, tuple(Row(*row) for row in content))
