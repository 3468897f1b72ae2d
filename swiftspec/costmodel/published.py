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
from typing import Any, Protocol

from swiftspec.costmodel.linear_fit import LinearFit, Observation
from swiftspec.devices import DeviceSpec, named_device
from swiftspec.models.published import known_model
from swiftspec.models.quantisation import BF16_BYTES, QUANTISATIONS
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import ModelSpec
from swiftspec.timing.latency import Part, Provenance, weakest

_TABLES = Path(__file__).with_name("published.json")
_INT4_BYTES = QUANTISATIONS["int4"].bytes_per_weight
_TILE_ROWS = 8  # the tensor cores' smallest tile: fewer rows cost as much
_HEAD_EFFICIENCY = 0.8  # of the memory bandwidth: reached by bf16 GEMMs of that size in the Hopper tables
_OPERATIONS = ("qkv", "attention", "o", "gate_up", "down")
MEASURED_ON = named_device("h800-sxm")


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


class PublishedForwards(Protocol):
    """Whole forwards of an engine that is known by its published figures."""

    collective: str  # name of its all-reduce

    def all_reduce_s(self, spec: ModelSpec, *, degree: int, rows: int) -> float:
        """Time of one all-reduce that a forward waits for."""

    def parts(self, spec: ModelSpec, *, degree: int, rows: int, context: int) -> tuple[Part, ...]:
        """A forward of `rows` rows after `context` slots on `degree` devices."""


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
        as_measured = SwiftSpecKernels(MEASURED_ON)
        observations = []
        for row in published_tables()["own_forwards"]["forwards"]:
            spec, degree, context = known_model(row["model"]).spec, row["degree"], row["context"]
            layer_s = sum(as_measured.kernel_s(name, spec, degree, context=context) for name in _OPERATIONS)
            kernels_s = spec.num_layers * layer_s
            tiles = kernels_s * (num_tiles(row["rows"]) - 1)
            pushing_s = 2 * spec.num_layers * _push_s(spec, degree, rows=row["rows"], device=MEASURED_ON)
            observations.append(
                Observation(
                    name=f"{row['model']} on {degree} devices, {row['rows']} rows",
                    amounts={"exchange": pushing_s, "tile": tiles},
                    seconds=row["milliseconds"] * 1e-3,
                    fixed_s=kernels_s + head_s(spec, degree, MEASURED_ON),
                )
            )
        return observations

    def all_reduce_s(self, spec: ModelSpec, *, degree: int, rows: int) -> float:
        cost = self.kernels.coefficients["push_s"] + self.forwards.coefficients["exchange"]
        return cost * _push_s(spec, degree, rows=rows, device=self.device)

    def parts(self, spec: ModelSpec, *, degree: int, rows: int, context: int) -> tuple[Part, ...]:
        layers = spec.num_layers * (1 + self.forwards.coefficients["tile"] * (num_tiles(rows) - 1))
        push_s = _push_s(spec, degree, rows=rows, device=self.device)
        pushing_s = _push_s(spec, degree, rows=_TILE_ROWS, device=self.device) * self.kernels.coefficients["push_s"]
        seconds = {name: layers * self.kernel_s(name, spec, degree, rows=rows, context=context) for name in _OPERATIONS}
        for name in ("o", "down"):
            seconds[name] -= layers * pushing_s
        exchange_s = push_s * self.forwards.coefficients["exchange"]
        seconds["all_reduce"] = 2 * (layers * pushing_s + spec.num_layers * exchange_s)
        seconds["lm_head"] = head_s(spec, degree, self.device)
        # QKV is in none of the tables: it costs as much per byte as the kernel for gate and up.
        known = {"qkv": Provenance.COMPOSED, "lm_head": Provenance.ROOFLINE}
        parts = ((name, value, known.get(name, Provenance.INTERPOLATED)) for name, value in seconds.items())
        return parts_on(self.device, parts)

    def kernel_s(
        self, operation: str, spec: ModelSpec, degree: int, *, rows: int = _TILE_ROWS, context: int = 0
    ) -> float:
        """Time of one layer's kernel, for at most one tile of rows."""
        amounts = _amounts(operation, spec, degree, rows=min(rows, _TILE_ROWS), context=context, device=self.device)
        slower = MEASURED_ON.memory_bandwidth_Bps / self.device.memory_bandwidth_Bps
        scaled = {name: amount * slower if name.endswith("_bytes") else amount for name, amount in amounts.items()}
        return self.kernels.seconds(scaled)


def kernel_observations() -> list[Observation]:
    """The paper's times of its own kernels."""
    tables = published_tables()["kernels"]
    columns = (("o", 0), ("down", 0), ("gate_up", 0), ("attention", 500), ("attention", 1000))
    return [
        Observation(
            name=f"{operation}{f' after {context}' if context else ''}, {model} on {degree}",
            amounts=_amounts(operation, spec, degree, rows=tables["rows"], context=context, device=MEASURED_ON),
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
    return num_tiles(rows) * _TILE_ROWS * spec.hidden_size * BF16_BYTES * (degree - 1) / device.link_bandwidth_Bps


def parts_on(device: DeviceSpec, parts: Iterable[tuple[str, float, Provenance]]) -> tuple[Part, ...]:
    """Parts by name, seconds and provenance, which holds for H800's memory; else it is a roofline on bytes."""
    same = device.memory_bandwidth_Bps == MEASURED_ON.memory_bandwidth_Bps
    return tuple(
        Part(name=name, seconds=seconds, provenance=known if same else weakest((known, Provenance.ROOFLINE)))
        for name, seconds, known in parts
        if seconds
    )


def num_tiles(rows: int) -> int:
    return -(-rows // _TILE_ROWS)


def head_s(spec: ModelSpec, degree: int, device: DeviceSpec) -> float:
    """Time of the LM head, in bf16, its columns divided."""
    head_bytes = sharded(spec, degree).vocab_size * spec.hidden_size * BF16_BYTES
    return head_bytes / (_HEAD_EFFICIENCY * device.memory_bandwidth_Bps)
