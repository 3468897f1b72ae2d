"""Size of quantised weights: matrices of the layers; embeddings, norms, routers and biases stay in bf16."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from swiftspec.models.names import unknown

if TYPE_CHECKING:
    from swiftspec.models.spec import ModelSpec

__all__ = ["BF16_BYTES", "QUANTISATIONS", "Part", "Quantisation", "StoredWeights", "dense_format", "weight_bytes"]

BF16_BYTES = 2
_BF16_BITS = 16.0


class Part(StrEnum):
    """Matrices of a model that have one format, or one on average."""

    ATTENTION = "attention"
    NETWORKS = "networks"  # dense ones, and shared experts
    EXPERTS = "experts"  # routed
    HEAD = "head"  # unless it is the embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """Bits of a weight in a layer's matrix, and of its scales: `scale_bits` for every `group_size` weights.

    A group of 0 is a whole output row, whose scale is too small to count. experts_only: all matrices but those of
    routed experts stay in bf16.
    """

    name: str
    weight_bits: int
    group_size: int = 0
    scale_bits: int = 0
    experts_only: bool = False

    @property
    def bits_per_weight(self) -> float:
        return self.weight_bits + (self.scale_bits / self.group_size if self.group_size else 0.0)

    @property
    def bytes_per_weight(self) -> float:
        return self.bits_per_weight / 8

    def bits(self, part: Part) -> float:
        """Bits of a weight of a part, scales included."""
        is_kept = part is Part.HEAD or (self.experts_only and part is not Part.EXPERTS)
        return _BF16_BITS if is_kept else self.bits_per_weight


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """Format of a checkpoint's weights, as its files say.

    Parameters
    ----------
    name, dense : str
        Formats of most weights, and of most of those that are not routed experts': of `QUANTISATIONS`.
    bits_by_part : tuple of (Part, float)
        Mean bits of a part's weights, scales and matrices that are not quantised included.
    objection : str
        Why it cannot be planned in that format, a sentence; empty if it can.
    """

    name: str
    dense: str = "bf16"
    bits_by_part: tuple[tuple[Part, float], ...] = ()
    objection: str = ""

    def bits(self, part: Part) -> float:
        """Bits of a weight of a part, scales included."""
        return dict(self.bits_by_part)[part]


QUANTISATIONS: dict[str, Quantisation] = {
    quantisation.name: quantisation
    for quantisation in (
        Quantisation(name="bf16", weight_bits=16),
        Quantisation(name="fp8", weight_bits=8),
        Quantisation(name="int8", weight_bits=8),
        # AWQ (arXiv 2306.00978): an fp16 scale and a 4-bit zero for every 128 weights.
        Quantisation(name="int4", weight_bits=4, group_size=128, scale_bits=20),
        # OCP Microscaling formats 1.0: an 8-bit exponent for every 32 weights; as in gpt-oss (arXiv 2508.10925).
        Quantisation(name="mxfp4", weight_bits=4, group_size=32, scale_bits=8, experts_only=True),
        # An fp8 scale for every 16 weights (ModelOpt's NVFP4).
        Quantisation(name="nvfp4", weight_bits=4, group_size=16, scale_bits=8),
    )
}


def dense_format(spec: "ModelSpec", quantisation: str) -> str:
    """Format of the matrices other than routed experts', or of most of them in a checkpoint that has several."""
    if spec.stored is not None and spec.stored.name == quantisation:
        return spec.stored.dense
    return "bf16" if QUANTISATIONS[quantisation].experts_only else quantisation


def weight_bytes(spec: "ModelSpec", quantisation: str) -> int:
    """Memory of a model's weights; in the format of its checkpoint, as that has it.

    ValueError for a quantisation that is not in the table.
    """
    if quantisation not in QUANTISATIONS:
        raise unknown("quant", quantisation, QUANTISATIONS)
    stored = spec.stored
    kept = stored if stored is not None and stored.name == quantisation else QUANTISATIONS[quantisation]
    parts = spec.parameters_by_part
    rest = spec.num_parameters - sum(parts.values())
    return round(sum(count * kept.bits(part) for part, count in parts.items()) / 8) + rest * BF16_BYTES
