"""Loads one rank's part of models: their common spec, and the weights of its shard, expanded before sharding.

What several models make of equal weights is made once.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from swiftspec.engine.model.memory import require_memory
from swiftspec.engine.model.weights.checkpoint import load_weights
from swiftspec.engine.model.weights.inflate import inflate_adapters, inflate_weights
from swiftspec.engine.model.weights.low_rank import Adapters, cut_adapters, load_adapters
from swiftspec.engine.model.weights.sharding import cut_weights
from swiftspec.models.inflation import Inflation
from swiftspec.models.sharding import shard_of
from swiftspec.models.spec import ModelSpec
from swiftspec.models.tenants import check_same_shape, is_adapter

_Made = TypeVar("_Made")


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
    device: torch.device | str = "cpu",
) -> tuple[ModelSpec, Mapping[str, Tensor]]:
    """The whole model's spec, and the weights that this rank holds. ValueError if the directory cannot be used."""
    spec = ModelSpec.from_directory(directory)
    if inflation is None:
        return spec, load_weights(directory, spec, shard_of(spec, size, rank))
    inflated = inflation.inflated(spec)
    if torch.device(device).type == "cpu":
        # In 16 bits, the narrowest numbers that a CPU computes with.
        require_memory(2 * inflated.num_parameters // size, f"{directory}: the model inflated to {inflation}")
    weights = inflate_weights(load_weights(directory, spec), spec, inflation, seed=0, device=device)
    return inflated, cut_weights(weights, shard_of(inflated, size, rank))


def load_tenants(
    directory: str | Path,
    tenants: Sequence[str | Path],
    *,
    rank: int,
    size: int,
    inflation: Inflation | None,
) -> tuple[ModelSpec, Iterator[LoadedModel]]:
    """A model as of `load_model`, and then its tenants: fine-tunes or adapters, each loaded when its turn comes."""
    spec, weights = load_model(directory, rank=rank, size=size, inflation=inflation)
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
            own_spec, own = load_model(tenant, rank=rank, size=size, inflation=inflation)
            check_same_shape(own_spec, spec, tenant)
            yield LoadedModel(own, {})

    return spec, models()


def local_spec(spec: ModelSpec, *, rank: int, size: int) -> ModelSpec:
    """The shape that this rank computes with; its head has a part of the vocabulary and is not the embedding."""
    if size == 1:
        return spec
    return dataclasses.replace(shard_of(spec, size, rank).spec, tie_word_embeddings=False)


class SharedWeights:
    """Finds equal weights by their content, wherever they were loaded from.

    is_shared: whether there are several models; of one alone nothing is compared, which would take a second per
    gigabyte.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._made: dict[bytes, object] | None = {} if is_shared else None

    def once(self, kind: str, weights: Sequence[Tensor | None], make: Callable[[], _Made]) -> _Made:
        """What `make` makes of these weights: what it made before, if they were the same, and so was `kind`."""
        if self._made is None:
            return make()
        key = _digest(kind, weights)
        if key not in self._made:
            self._made[key] = make()
        return cast(_Made, self._made[key])


def _digest(kind: str, weights: Sequence[Tensor | None]) -> bytes:
    digest = hashlib.blake2b(kind.encode(), digest_size=16)
    for weight in weights:
        if weight is None:
            digest.update(b"none")
            continue
        digest.update(f"{weight.dtype} {[*weight.shape]} ".encode())
        digest.update(weight.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.digest()
