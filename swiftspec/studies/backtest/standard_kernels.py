"""Forwards of vLLM 0.7.2 that SwiftSpec's authors measured beside their own, and how fits do without each figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from swiftspec.costmodel.linear_fit import LinearFit, Observation
from swiftspec.costmodel.published import (
    MEASURED_ON,
    SwiftSpecKernels,
    head_s,
    int4_weight_bytes,
    num_tiles,
    parts_on,
    published_tables,
)
from swiftspec.devices import DeviceSpec
from swiftspec.models.published import known_model
from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import ModelSpec
from swiftspec.timing.latency import Part, Provenance


@dataclass(frozen=True)
class StandardInt4Kernels:
    """Forwards of vLLM 0.7.2's kernels for 4-bit weights, with NCCL.

    A layer costs a floor (attention, norms, launches), the bytes of its weights, and, over several devices, a time for
    each device that an all-reduce waits for.

    attention: as in the paper's ablation, whose arms run in the authors' runtime: use its attention kernel, and none of
        vLLM's time beside its kernels, which is what a layer of Table 1 takes longer than its kernels of Table 3.
    """

    device: DeviceSpec
    attention: SwiftSpecKernels | None = None

    collective = "nccl"

    @cached_property
    def fit(self) -> LinearFit:
        """Seconds per layer, per byte, and per device waited for in a layer."""
        return LinearFit.to(standard_observations())

    def all_reduce_s(self, spec: ModelSpec, *, degree: int, rows: int) -> float:
        del spec, rows  # the published times do not show an effect of message size
        return degree * self.fit.coefficients["waits"] / 2

    def parts(self, spec: ModelSpec, *, degree: int, rows: int, context: int) -> tuple[Part, ...]:
        """A forward of `rows` rows after `context` slots on `degree` devices; more than 8 rows as a second tile."""
        amounts, cost = _standard_amounts(spec, degree), self.fit.coefficients
        slower = MEASURED_ON.memory_bandwidth_Bps / self.device.memory_bandwidth_Bps
        kv_bytes = spec.num_layers * context * 2 * sharded(spec, degree).kv_size * BF16_BYTES
        floor_s = cost["layers"] + self._of_other_runtime_s(spec, degree, rows=rows, context=context)
        parts = [
            ("attention, norms, launches", amounts["layers"] * floor_s, Provenance.INTERPOLATED),
            ("gemm", amounts["bytes"] * cost["bytes"] * slower * num_tiles(rows), Provenance.INTERPOLATED),
            ("kv", kv_bytes / self.device.memory_bandwidth_Bps, Provenance.ROOFLINE),
            ("all_reduce", amounts["waits"] * cost["waits"], Provenance.INTERPOLATED),
            ("lm_head", head_s(spec, degree, self.device), Provenance.ROOFLINE),
        ]
        return parts_on(self.device, parts)

    def _of_other_runtime_s(self, spec: ModelSpec, degree: int, *, rows: int, context: int) -> float:
        """Seconds that a layer takes longer in the ablation's runtime: less than none."""
        if self.attention is None:
            return 0.0
        layer = published_tables()["layer"]
        kernels_s = 1e-6 * sum(layer["microseconds"].values())
        replaced_s = 1e-6 * float(layer["microseconds"]["attention"])
        measured = known_model(layer["model"]).spec
        of_vllm_s = self.fit.seconds(_standard_amounts(measured, layer["degree"])) / measured.num_layers
        own_s = self.attention.kernel_s("attention", spec, degree, rows=rows, context=context)
        return float(own_s - replaced_s - (of_vllm_s - kernels_s))


def standard_observations() -> list[Observation]:
    """The paper's forwards of vLLM."""
    table = published_tables()["forwards"]
    return [
        Observation(
            name=f"{model} on {degree} devices, {table['rows']} rows",
            amounts=_standard_amounts(spec, degree),
            seconds=milliseconds * 1e-3,
            fixed_s=head_s(spec, degree, MEASURED_ON),
        )
        for model, forwards in table["milliseconds"].items()
        for spec in [known_model(model).spec]
        for degree, milliseconds in zip(table["degrees"], forwards, strict=True)
    ]


def _standard_amounts(spec: ModelSpec, degree: int) -> dict[str, float]:
    return {
        "layers": float(spec.num_layers),
        "bytes": spec.num_layers * sum(int4_weight_bytes(spec, degree).values()),
        "waits": float(spec.num_layers * degree if degree > 1 else 0),
    }


def leave_one_out(observations: Sequence[Observation]) -> list[float | None]:
    """The error of each observation under the fit to all others; None if it alone has some cost."""
    errors: list[float | None] = []
    for index, observation in enumerate(observations):
        others = [*observations[:index], *observations[index + 1 :]]
        known = {name for other in others for name in other.amounts if other.amounts[name]}
        identified = all(name in known for name, amount in observation.amounts.items() if amount)
        errors.append(LinearFit.to(others).error(observation) if identified else None)
    return errors
