"""Forwards with 4-bit weights, absent from all op tables, from SwiftSpec's authors' figures of two stacks.

Both were measured on H800s. A kernel reads its weights at some bandwidth after a fixed floor; a one-shot all-reduce
pushes the activations to every peer, which takes longer in a whole forward than in a kernel timed alone. Rows come in
tiles of 8. The coefficients are least-squares fits to the published tables (`published.json`); on another device, bytes
take as long as its memory and links imply.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from swiftspec.costmodel.linear_fit import LinearFit, Observation
from swiftspec.devices import DeviceSpec, named_device
from swiftspec.models import QUANTISATIONS, known_model, sharded
from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.spec import ModelSpec
from swiftspec.timing.latency import Part, Provenance, weakest

_TABLES = Path(__file__).with_name("published.json")
_INT4_BYTES = QUANTISATIONS["int4"].bytes_per_weight
_TILE_ROWS = 8  # the tensor cores' smallest tile: fewer rows cost as much
_HEAD_EFFICIENCY = 0.8  # of the memory bandwidth: reached by bf16 GEMMs of that size in the Hopper tables
_OPERATIONS = ("qkv", "attention", "o", "gate_up", "down")
_MEASURED_ON = named_device("h800-sxm")


@cache
def published_tables() -> Mapping[str, Any]:
    """Published figures, with their places in the paper."""
    tables: Mapping[str, Any] = json.loads(_TABLES.read_text(encoding="utf-8"))
    return tables


def int4_weight_bytes(spec: ModelSpec, degree: int) -> dict[str, float]:
    """Weight bytes of one layer on one device, by matrix product."""
    shard = sharded(spec, degree)
    weights = {
        "qkv": shard.query_size + 2 * shard.kv_size,
        "o": shard.query_size,
        "gate_up": 2 * shard.intermediate_size,
        "down": shard.intermediate_size,
    }
    return {name: spec.hidden_size * width * _INT4_BYTES for name, width in weights.items()}


@dataclass(frozen=True)
class SwiftSpecKernels:
    """Forwards of SwiftSpec's own kernels: GEMM fused with the all-reduce, RoPE with attention, gate with up."""

    device: DeviceSpec

    collective = "fused"  # name of the all-reduce

    @cached_property
    def kernels(self) -> LinearFit:
        """Seconds per floor, byte, score and pushed second of the kernels."""
        return LinearFit.to(kernel_observations())

    @cached_property
    def forwards(self) -> LinearFit:
        """Extra time of the exchange over kernels timed alone, per second of pushing; and of a further tile of rows."""
        return LinearFit.to(self.forward_observations())

    def forward_observations(self) -> list[Observation]:
        """Whole target forwards; their kernels are known from the other fit."""
        as_measured = SwiftSpecKernels(_MEASURED_ON)
        observations = []
        for row in published_tables()["own_forwards"]["forwards"]:
            spec, degree, context = known_model(row["model"]).spec, row["degree"], row["context"]
            layer_s = sum(as_measured.kernel_s(name, spec, degree, context=context) for name in _OPERATIONS)
            kernels_s = spec.num_layers * layer_s
            tiles = kernels_s * (_num_tiles(row["rows"]) - 1)
            pushing_s = 2 * spec.num_layers * _push_s(spec, degree, rows=row["rows"], device=_MEASURED_ON)
            observations.append(
                Observation(
                    name=f"{row['model']} on {degree} devices, {row['rows']} rows",
                    amounts={"exchange": pushing_s, "tile": tiles},
                    seconds=row["milliseconds"] * 1e-3,
                    fixed_s=kernels_s + _head_s(spec, degree, _MEASURED_ON),
                )
            )
        return observations

    def all_reduce_s(self, spec: ModelSpec, *, degree: int, rows: int) -> float:
        """Time of one all-reduce that a forward waits for."""
        cost = self.kernels.coefficients["push_s"] + self.forwards.coefficients["exchange"]
        return cost * _push_s(spec, degree, rows=rows, device=self.device)

    def parts(self, spec: ModelSpec, *, degree: int, rows: int, context: int) -> tuple[Part, ...]:
        """A forward of `rows` rows after `context` slots on `degree` devices."""
        layers = spec.num_layers * (1 + self.forwards.coefficients["tile"] * (_num_tiles(rows) - 1))
        push_s = _push_s(spec, degree, rows=rows, device=self.device)
        pushing_s = _push_s(spec, degree, rows=_TILE_ROWS, device=self.device) * self.kernels.coefficients["push_s"]
        seconds = {name: layers * self.kernel_s(name, spec, degree, rows=rows, context=context) for name in _OPERATIONS}
        for name in ("o", "down"):
            seconds[name] -= layers * pushing_s
        exchange_s = push_s * self.forwards.coefficients["exchange"]
        seconds["all_reduce"] = 2 * (layers * pushing_s + spec.num_layers * exchange_s)
        seconds["lm_head"] = _head_s(spec, degree, self.device)
        # QKV is in none of the tables: it costs as much per byte as the kernel for gate and up.
        known = {"qkv": Provenance.COMPOSED, "lm_head": Provenance.ROOFLINE}
        parts = ((name, value, known.get(name, Provenance.INTERPOLATED)) for name, value in seconds.items())
        return _parts_on(self.device, parts)

    def kernel_s(
        self, operation: str, spec: ModelSpec, degree: int, *, rows: int = _TILE_ROWS, context: int = 0
    ) -> float:
        """Time of one layer's kernel, for at most one tile of rows."""
        amounts = _amounts(operation, spec, degree, rows=min(rows, _TILE_ROWS), context=context, device=self.device)
        slower = _MEASURED_ON.memory_bandwidth_Bps / self.device.memory_bandwidth_Bps
        scaled = {name: amount * slower if name.endswith("_bytes") else amount for name, amount in amounts.items()}
        return self.kernels.seconds(scaled)


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
        slower = _MEASURED_ON.memory_bandwidth_Bps / self.device.memory_bandwidth_Bps
        kv_bytes = spec.num_layers * context * 2 * sharded(spec, degree).kv_size * BF16_BYTES
        floor_s = cost["layers"] + self._of_other_runtime_s(spec, degree, rows=rows, context=context)
        parts = [
            ("attention, norms, launches", amounts["layers"] * floor_s, Provenance.INTERPOLATED),
            ("gemm", amounts["bytes"] * cost["bytes"] * slower * _num_tiles(rows), Provenance.INTERPOLATED),
            ("kv", kv_bytes / self.device.memory_bandwidth_Bps, Provenance.ROOFLINE),
            ("all_reduce", amounts["waits"] * cost["waits"], Provenance.INTERPOLATED),
            ("lm_head", _head_s(spec, degree, self.device), Provenance.ROOFLINE),
        ]
        return _parts_on(self.device, parts)

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


# Whole forwards of an engine that is known by its published figures.
PublishedForwards = SwiftSpecKernels | StandardInt4Kernels


def standard_observations() -> list[Observation]:
    """The paper's forwards of vLLM."""
    table = published_tables()["forwards"]
    return [
        Observation(
            name=f"{model} on {degree} devices, {table['rows']} rows",
            amounts=_standard_amounts(spec, degree),
            seconds=milliseconds * 1e-3,
            fixed_s=_head_s(spec, degree, _MEASURED_ON),
        )
        for model, forwards in table["milliseconds"].items()
        for spec in [known_model(model).spec]
        for degree, milliseconds in zip(table["degrees"], forwards, strict=True)
    ]


def kernel_observations() -> list[Observation]:
    """The paper's times of its own kernels."""
    tables = published_tables()["kernels"]
    columns = (("o", 0), ("down", 0), ("gate_up", 0), ("attention", 500), ("attention", 1000))
    return [
        Observation(
            name=f"{operation}{f' after {context}' if context else ''}, {model} on {degree}",
            amounts=_amounts(operation, spec, degree, rows=tables["rows"], context=context, device=_MEASURED_ON),
            seconds=microseconds * 1e-6,
        )
        for model, degree, *row in tables["microseconds"]
        for spec in [known_model(model).spec]
        for (operation, context), microseconds in zip(columns, row, strict=True)
    ]


def _amounts(
    operation: str, spec: ModelSpec, degree: int, *, rows: int, device: DeviceSpec, context: int = 0
) -> dict[str, float]:
    """Amount of each cost in one of SwiftSpec's kernels."""
    if operation == "attention":
        return {"attention_floor": 1.0, "scores": rows * sharded(spec, degree).query_size * context}
    weight_bytes = int4_weight_bytes(spec, degree)[operation]
    if operation in ("qkv", "gate_up"):
        return {"gemm_floor": 1.0, "gemm_bytes": weight_bytes}
    push_s = _push_s(spec, degree, rows=rows, device=device)
    return {"fused_floor": 1.0, "fused_bytes": weight_bytes, "push_s": push_s}


def _push_s(spec: ModelSpec, degree: int, *, rows: int, device: DeviceSpec) -> float:
    """Time to push the activations of some rows, at least a tile, to every peer at the links' bandwidth."""
    return _num_tiles(rows) * _TILE_ROWS * spec.hidden_size * BF16_BYTES * (degree - 1) / device.link_bandwidth_Bps


def _standard_amounts(spec: ModelSpec, degree: int) -> dict[str, float]:
    return {
        "layers": float(spec.num_layers),
        "bytes": spec.num_layers * sum(int4_weight_bytes(spec, degree).values()),
        "waits": float(spec.num_layers * degree if degree > 1 else 0),
    }


def _parts_on(device: DeviceSpec, parts: Iterable[tuple[str, float, Provenance]]) -> tuple[Part, ...]:
    """Parts by name, seconds and provenance, which holds for H800's memory; else it is a roofline on bytes."""
    same = device.memory_bandwidth_Bps == _MEASURED_ON.memory_bandwidth_Bps
    return tuple(
        Part(name=name, seconds=seconds, provenance=known if same else weakest((known, Provenance.ROOFLINE)))
        for name, seconds, known in parts
        if seconds
    )


def _num_tiles(rows: int) -> int:
    return -(-rows // _TILE_ROWS)


def _head_s(spec: ModelSpec, degree: int, device: DeviceSpec) -> float:
    """Time of the LM head, in bf16, its columns divided."""
    head_bytes = sharded(spec, degree).vocab_size * spec.hidden_size * BF16_BYTES
    return head_bytes / (_HEAD_EFFICIENCY * device.memory_bandwidth_Bps)
