"""Shard of a model under tensor parallelism: one definition for its cost and for its weights."""

import dataclasses
from dataclasses import dataclass

from swiftspec.models.layer_parts import padded_columns
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.models.spec import ModelSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One rank's share of a model.

    spec: shape of the shard, padding included: `sharded` of the model's.
    degree, rank: ranks that share the model, and this one's number.
    query_heads, kv_heads: the model's head in each slot of this rank; None for padding. Equally many consecutive query
        slots belong to each KV slot, as in any model.
    neurons, vocabulary: of the feed-forward network and of the head, without padding, which comes last.
    """

    spec: ModelSpec
    degree: int
    rank: int
    query_heads: tuple[int | None, ...]
    kv_heads: tuple[int | None, ...]
    neurons: range
    vocabulary: range


def sharded(spec: ModelSpec, degree: int) -> ModelSpec:
    """The shape that one of `degree` devices holds and computes with.

    Whole groups of heads go to a device, zero-padded to equal numbers. Beyond one device per KV head, groups are cut
    into pieces of query heads, each with its own copy of the KV head, such that a device's attention has the fewest
    weights. Neurons, of a layer or of each expert, and vocabulary are padded to equal multiples of 16. `SparseSpec`s
    are divided into equal parts only, as their layout has it.

    ValueError: if the degree is below 1, or cannot divide a `SparseSpec`.
    """
    if degree < 1:
        raise ValueError(f"degree is {degree}; expected at least 1")
    if degree == 1:
        return spec
    if isinstance(spec, SparseSpec):
        return spec.divided(degree)
    num_pieces, piece_size = _pieces(spec, degree)
    intermediate = padded_columns(spec.intermediate_size, degree)
    return dataclasses.replace(
        spec,
        num_heads=num_pieces * piece_size,
        num_kv_heads=num_pieces,
        intermediate_size=intermediate,
        experts=None if spec.experts is None else dataclasses.replace(spec.experts, size=intermediate),
        vocab_size=padded_columns(spec.vocab_size, degree),
    )


def shard_of(spec: ModelSpec, degree: int, rank: int) -> Shard:
    """Share of rank `rank` of `degree`. Every head, neuron and token is on some rank, each query head on one.

    ValueError: if the degree is below 1, or there is no such rank.
    """
    share = sharded(spec, degree)
    if not 0 <= rank < degree:
        raise ValueError(f"rank is {rank}; expected 0 to {degree - 1}")
    size = share.group_size
    pieces = [
        (kv_head, range(first, min(first + size, (kv_head + 1) * spec.group_size)))
        for kv_head in range(spec.num_kv_heads)
        for first in range(kv_head * spec.group_size, (kv_head + 1) * spec.group_size, size)
    ]
    held = pieces[rank * share.num_kv_heads : (rank + 1) * share.num_kv_heads]
    query_heads = [head for _, heads in held for head in (*heads, *[None] * (size - len(heads)))]
    return Shard(
        spec=share,
        degree=degree,
        rank=rank,
        query_heads=_filled(query_heads, share.num_heads),
        kv_heads=_filled([kv_head for kv_head, _ in held], share.num_kv_heads),
        neurons=_part(spec.intermediate_size, share.intermediate_size, rank),
        vocabulary=_part(spec.vocab_size, share.vocab_size, rank),
    )


def _pieces(spec: ModelSpec, degree: int) -> tuple[int, int]:
    """Pieces of a device, and the query heads of each."""
    groups, size = spec.num_kv_heads, spec.group_size
    # Copies of KV heads fill the cache: none is made while there is a group for every device.
    sizes = [size] if degree <= groups else range(1, size + 1)
    choices = [(-(-groups * -(-size // piece) // degree), piece) for piece in sizes]
    # A query head has as many weights (its rows, its columns of the output) as a KV head (rows of keys and of values).
    return min(choices, key=lambda choice: (choice[0] * (choice[1] + 1), choice))


def _part(size: int, width: int, rank: int) -> range:
    return range(min(rank * width, size), min((rank + 1) * width, size))


def _filled(heads: list[int | None] | list[int], size: int) -> tuple[int | None, ...]:
    return (*heads, *[None] * (size - len(heads)))
