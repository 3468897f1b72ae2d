"""Loads one rank's part of a model directory: its spec, and the weights of its shard, expanded before sharding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from swiftspec.engine.model.checkpoint import load_weights
from swiftspec.engine.model.inflate import inflate_weights
from swiftspec.engine.model.memory import require_memory
from swiftspec.engine.model.weight_sharding import cut_weights
from swiftspec.models.sharding import shard_of
from swiftspec.models.spec import Inflation, ModelSpec

__all__ = ["load_model", "local_spec"]


def load_model(
    directory: str | Path,
    *,
    rank: int,
    size: int,
    inflation: Inflation | None,
    seed: int,
    device: torch.device | str = "cpu",
) -> tuple[ModelSpec, Mapping[str, Tensor]]:
    """The whole model's spec, and the weights that rank `rank` of `size` holds.

    ValueError in one sentence if the directory cannot be used.
    """
    spec = ModelSpec.from_directory(directory)
    if inflation is None:
        return spec, load_weights(directory, spec, shard_of(spec, size, rank))
    inflated = inflation.inflated(spec)
    if torch.device(device).type == "cpu":
        # In 16 bits, the narrowest numbers that a CPU computes with.
        require_memory(2 * inflated.num_parameters // size, f"{directory}: the model inflated to {inflation}")
    weights = inflate_weights(load_weights(directory, spec), spec, inflation, seed=seed, device=device)
    return inflated, cut_weights(weights, shard_of(inflated, size, rank))


def local_spec(spec: ModelSpec, *, rank: int, size: int) -> ModelSpec:
    """The shape that this rank computes with; its head has a part of the vocabulary and is not the embedding."""
    if size == 1:
        return spec
    return dataclasses.replace(shard_of(spec, size, rank).spec, tie_word_embeddings=False)
