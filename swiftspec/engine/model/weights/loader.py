"""Loads one rank's part of models: their common spec, and the weights of its shard, expanded before sharding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from swiftspec.engine.model.memory import require_memory
from swiftspec.engine.model.weights.checkpoint import load_weights
from swiftspec.engine.model.weights.inflate import inflate_adapters, inflate_weights
from swiftspec.engine.model.weights.low_rank import Adapters, cut_adapters, load_adapters
from swiftspec.engine.model.weights.sharding import cut_weights
from swiftspec.models.adapters import is_adapter
from swiftspec.models.inflation import Inflation
from swiftspec.models.sharding import shard_of
from swiftspec.models.spec import ModelSpec
from swiftspec.models.tenants import check_same_shape

__all__ = ["LoadedModel", "load_model", "load_tenants", "local_spec"]


class LoadedModel(NamedTuple):
    """Weights by name, and the adapters of some of them."""

    weights: Mapping[str, Tensor]
    adapters: Adapters


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


def load_tenants(
    directory: str | Path,
    tenants: Sequence[str | Path],
    *,
    rank: int,
    size: int,
    inflation: Inflation | None,
    seed: int,
) -> tuple[ModelSpec, Iterator[LoadedModel]]:
    """A model as `load_model` has it, and then its tenants: fine-tunes of it, or adapters. Each is loaded when its turn
    comes.
    """
    spec, weights = load_model(directory, rank=rank, size=size, inflation=inflation, seed=seed)
    if tenants and spec.experts is not None:
        raise ValueError(f"tenant {tenants[0]}: tenants are served of dense models only; {directory} has experts")

    def models() -> Iterator[LoadedModel]:
        yield LoadedModel(weights, {})
        small = ModelSpec.from_directory(directory)
        for tenant in map(Path, tenants):
            if is_adapter(tenant):
                adapters = load_adapters(tenant, small)
                if inflation is not None:
                    adapters = inflate_adapters(adapters, small, inflation)
                yield LoadedModel(weights, cut_adapters(adapters, shard_of(spec, size, rank)))
                continue
            own_spec, own = load_model(tenant, rank=rank, size=size, inflation=inflation, seed=seed)
            check_same_shape(own_spec, spec, tenant)
            yield LoadedModel(own, {})

    return spec, models()


def local_spec(spec: ModelSpec, *, rank: int, size: int) -> ModelSpec:
    """The shape that this rank computes with; its head has a part of the vocabulary and is not the embedding."""
    if size == 1:
        return spec
    return dataclasses.replace(shard_of(spec, size, rank).spec, tie_word_embeddings=False)
