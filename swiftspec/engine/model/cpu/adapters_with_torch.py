"""Layers of several tenants by torch, which computes the rows of one tenant after those of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from swiftspec.engine.model.cpu.sequence_input import SequenceInput
from swiftspec.engine.model.cpu.with_torch import TorchLayers
from swiftspec.engine.model.sampling.sampler import top_candidates
from swiftspec.engine.model.weights.loader import LoadedModel
from swiftspec.engine.model.weights.low_rank import merged
from swiftspec.engine.model.weights.shared import SharedWeights
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.spec import ModelSpec

__all__ = ["TorchTenants"]


class _Forwards(NamedTuple):
    """A forward in progress: one of each tenant that has rows."""

    inputs: Sequence[SequenceInput]
    parts: Sequence[tuple[TorchLayers, Any]]

    @property
    def residual(self) -> Tensor:
        """Residual stream of all rows, without padding."""
        own = [each.residual[: sum(len(sequence.tokens) for sequence in each.inputs)] for _, each in self.parts]
        return own[0] if len(own) == 1 else torch.cat(own)


class TorchTenants:
    """Layers of a model and its tenants. Layers that are equal as a whole are held once; adapters become layers."""

    compiles_sizes = True
    has_own_threads = False

    def __init__(
        self,
        spec: ModelSpec,
        models: Iterable[LoadedModel],
        *,
        shared: SharedWeights,
        dtype: torch.dtype,
        tp_group: TPGroup,
    ) -> None:
        self._tenants = [
            TorchLayers(spec, merged(*loaded), shared=shared, dtype=dtype, tp_group=tp_group) for loaded in models
        ]
        self.weight_bytes = tuple(tenant.num_bytes for tenant in self._tenants)

    def begin(self, inputs: Sequence[SequenceInput]) -> _Forwards:
        """A forward of each tenant's rows; a tenant's inputs are neighbours."""
        parts = []
        for tenant, own in groupby(inputs, key=lambda sequence: sequence.cache.tenant):
            layers = self._tenants[tenant]
            parts.append((layers, layers.begin(list(own))))
        return _Forwards(inputs, parts)

    def run(self, forward: _Forwards, layers: Sequence[int]) -> None:
        """The next layers of this forward."""
        for tenant, own in forward.parts:
            tenant.run(own, layers)

    def run_grouped(self, forward: _Forwards) -> None:
        """All layers, in groups whose attention reads the input of the group's first."""
        for tenant, own in forward.parts:
            tenant.run_grouped(own)

    def logits(self, forward: _Forwards) -> Tensor:
        """Logits [rows, V] of the rows that are to have them."""
        return torch.cat([tenant.logits(own) for tenant, own in forward.parts])

    def routes(self) -> Tensor | None:
        """Experts [layers, R, active] of the last forward's rows; None without experts, which a model alone has."""
        return self._tenants[0].routes()

    def candidates(self, logits: Tensor, k: int) -> tuple[list[list[int]], list[list[float]]]:
        """As `sampler.top_candidates`."""
        return top_candidates(logits, k)
