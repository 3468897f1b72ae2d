"""Weight sharding: a rank's rows or columns of each weight, by heads, neurons and tokens; padding is zero.

Norms are the same on all ranks. So is the embedding: it is looked up and never multiplied, and dividing it would add a
sum over the ranks at the start of every forward.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from swiftspec.models.sharding import Shard

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_ROWS, _COLUMNS = 0, 1
_OUTPUT_BIAS = "self_attn.o_proj.bias"


class Sliceable(Protocol):
    """A tensor, or one in a file of which only the requested part is read."""

    def __getitem__(self, index: Any) -> Tensor:
        """The part at an index."""


class _Run(NamedTuple):
    """A contiguous range: its start in the whole, its start in the part, and its length."""

    source: int
    place: int
    length: int


def cut(name: str, whole: Sliceable, shard: Shard) -> Tensor:
    """This rank's part of the weight `name`, in its own shape: that of `shard.spec`, the embedding excepted."""
    if shard.degree == 1:
        return whole[:]
    if name.endswith(_OUTPUT_BIAS):  # the ranks' results are summed, so only one may add the bias
        return whole[:] if shard.rank == 0 else torch.zeros_like(whole[:])
    plan = _plan(name, shard)
    return whole[:] if plan is None else _assembled(whole, *plan)


class OnDemand(Mapping[str, Tensor]):
    """Weights by name, each of which is made when it is asked for."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Tensor]) -> None:
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> Tensor:
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def cut_weights(weights: Mapping[str, Tensor], shard: Shard) -> Mapping[str, Tensor]:
    """A whole model's weights as this rank holds them, each cut on demand."""

    def part(name: str) -> Tensor:
        # A tied head is the embedding, of which a rank multiplies by its own rows.
        is_tied = name == HEAD and HEAD not in weights
        return cut(name, weights[EMBEDDING if is_tied else name], shard)

    return weights if shard.degree == 1 else OnDemand((*weights, HEAD), part)


def _plan(name: str, shard: Shard) -> tuple[int, list[_Run], int] | None:
    """Axis, the ranges taken along it, and the part's size there; None if a weight is not divided."""
    spec = shard.spec
    query = _head_runs(shard.query_heads, spec.head_dim), spec.query_size
    kv = _head_runs(shard.kv_heads, spec.head_dim), spec.kv_size
    neurons = [_Run(shard.neurons.start, 0, len(shard.neurons))], spec.intermediate_size
    tokens = [_Run(shard.vocabulary.start, 0, len(shard.vocabulary))], spec.vocab_size
    plans = {
        "q_proj": (_ROWS, *query),
        "k_proj": (_ROWS, *kv),
        "v_proj": (_ROWS, *kv),
        "o_proj": (_COLUMNS, *query),
        "gate_proj": (_ROWS, *neurons),
        "up_proj": (_ROWS, *neurons),
        "down_proj": (_COLUMNS, *neurons),
        "lm_head": (_ROWS, *tokens),
    }
    return plans.get(name.split(".")[-2])


def _head_runs(heads: Sequence[int | None], head_dim: int) -> list[_Run]:
    """Ranges of heads; neighbouring heads in neighbouring slots are one range."""
    held = [(slot, head) for slot, head in enumerate(heads) if head is not None]
    runs = [list(run) for _, run in groupby(held, key=lambda pair: pair[1] - pair[0])]
    return [_Run(run[0][1] * head_dim, run[0][0] * head_dim, len(run) * head_dim) for run in runs]


def _assembled(whole: Sliceable, axis: int, runs: Sequence[_Run], size: int) -> Tensor:
    def taken(start: int, length: int) -> Tensor:
        span = slice(start, start + length)
        return whole[span] if axis == _ROWS else whole[:, span]

    # A part that is all padding also needs a dtype and a shape.
    parts = [taken(run.source, run.length) for run in runs if run.length] or [taken(0, 1)]
    if len(parts) == 1 and parts[0].shape[axis] == size:
        return parts[0].contiguous()
    shape = [*parts[0].shape]
    shape[axis] = size
    part = torch.zeros(shape, dtype=parts[0].dtype, device=parts[0].device)
    for run, taken_part in zip([run for run in runs if run.length], parts, strict=False):
        part.narrow(axis, run.place, run.length).copy_(taken_part)
    return part
