"""A device's share of a model under tensor parallelism: one definition for what it costs and for what it holds."""

import dataclasses

from swiftspec.specs import ModelSpec

__all__ = ["sharded"]

_ALIGNMENT = 16  # columns: the smallest tile of a tensor-core product


def sharded(spec: ModelSpec, degree: int) -> ModelSpec:
    """The shape that one of `degree` devices computes with and holds.

    Whole groups of heads go to a device, zero-padded to equal numbers; on more devices than there are KV heads, these
    are replicated. Neurons and vocabulary are padded to equal multiples of 16.

    Raises
    ------
    ValueError
        If the degree is below 1.
    """
    if degree < 1:
        raise ValueError(f"degree is {degree}; expected at least 1")
    if degree == 1:
        return spec
    if degree <= spec.num_kv_heads:
        num_kv_heads = -(-spec.num_kv_heads // degree)
        num_heads = num_kv_heads * spec.group_size
    else:
        num_kv_heads, num_heads = 1, -(-spec.num_heads // degree)
    return dataclasses.replace(
        spec,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        intermediate_size=_columns(spec.intermediate_size, degree),
        vocab_size=_columns(spec.vocab_size, degree),
    )


def _columns(size: int, degree: int) -> int:
    return -(-size // (degree * _ALIGNMENT)) * _ALIGNMENT
