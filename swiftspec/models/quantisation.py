"""Size of quantised weights: matrices of the layers; embeddings, head, norms and biases stay in bf16."""

from dataclasses import dataclass

from swiftspec.models.names import unknown
from swiftspec.models.spec import ModelSpec

__all__ = ["BF16_BYTES", "QUANTISATIONS", "Quantisation", "dense_format", "draft_format", "weight_bytes"]

BF16_BYTES = 2


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
    def bytes_per_weight(self) -> float:
        scales = self.scale_bits / self.group_size if self.group_size else 0.0
        return (self.weight_bits + scales) / 8


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


def dense_format(quantisation: str, spec: ModelSpec) -> str:
    """Format of a model's matrices other than its routed experts'."""
    return "bf16" if QUANTISATIONS[quantisation].experts_only and spec.experts else quantisation


def draft_format(quantisation: str) -> str:
    """Format of a draft beside a target in this format, if nobody says."""
    return "bf16" if QUANTISATIONS[quantisation].experts_only else quantisation


def weight_bytes(spec: ModelSpec, quantisation: str) -> int:
    """Memory of a model's weights. ValueError for a quantisation that is not in the table."""
    if quantisation not in QUANTISATIONS:
        raise unknown("quant", quantisation, QUANTISATIONS)
    experts, matrices = spec.expert_parameters, spec.matrix_parameters
    rest = spec.num_parameters - matrices
    dense = QUANTISATIONS[dense_format(quantisation, spec)]
    num_bytes = experts * QUANTISATIONS[quantisation].bytes_per_weight + (matrices - experts) * dense.bytes_per_weight
    return round(num_bytes) + rest * BF16_BYTES
