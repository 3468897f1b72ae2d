"""Formats of weights: of matrices of the layers; embeddings, norms, routers and biases stay in bf16."""

from dataclasses import dataclass
from enum import StrEnum

BF16_BYTES = 2
BF16_BITS = 16.0


class Part(StrEnum):
    """Matrices of a model that have one format, or one on average."""

    ATTENTION = "attention"
    NETWORKS = "networks"  # dense ones, and shared experts
    EXPERTS = "experts"  # routed
    HEAD = "head"  # unless it is the embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """Bits of a weight in a layer's matrix, and of its scales: `scale_bits` for every `group_size` weights.

    A group of 0 is a whole output row, whose scale is too small to count. experts_only: of a model with routed experts
    all other matrices stay in bf16, as do drafts beside it. peak: the device's peak that it needs, where it runs on no
    device without.
    """

    name: str
    weight_bits: int
    group_size: int = 0
    scale_bits: int = 0
    experts_only: bool = False
    peak: str = ""

    @property
    def bits_per_weight(self) -> float:
        return self.weight_bits + (self.scale_bits / self.group_size if self.group_size else 0.0)

    @property
    def bytes_per_weight(self) -> float:
        return self.bits_per_weight / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """Format of a checkpoint's weights, as its files say.

    name, dense: formats of most weights, and of most of those that are not routed experts': of `QUANTISATIONS`.
    bits_by_part: tuple of (Part, float). Mean bits of a part's weights, scales and matrices that are not quantised
    included. objection: why it cannot be planned in that format, a sentence; empty if it can.
    """

    name: str
    dense: str = "bf16"
    bits_by_part: tuple[tuple[Part, float], ...] = ()
    objection: str = ""


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
        # An fp8 scale for every 16 weights, activations alike. Checkpoints of mixtures have their experts alone in it:
        # NVIDIA's nvfp4_experts_only recipe (github.com/NVIDIA/Model-Optimizer, pull request 1030), MiniMax-M2.5-NVFP4.
        Quantisation(name="nvfp4", weight_bits=4, group_size=16, scale_bits=8, experts_only=True, peak="fp4"),
    )
}


def draft_format(quantisation: str) -> str:
    """Format of a draft beside a target in this format, if nobody says."""
    return "bf16" if QUANTISATIONS[quantisation].experts_only else quantisation
