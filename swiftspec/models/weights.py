"""Memory of a model's weights, by the format of each part."""

from swiftspec.models.names import unknown
from swiftspec.models.quantisation import BF16_BITS, BF16_BYTES, QUANTISATIONS, Part
from swiftspec.models.spec import ModelSpec


def dense_format(quantisation: str, spec: ModelSpec) -> str:
    """Format of a model's matrices other than its routed experts', or of most of them if its checkpoint has several."""
    if spec.stored is not None and spec.stored.name == quantisation:
        return spec.stored.dense
    return "bf16" if QUANTISATIONS[quantisation].experts_only and spec.experts else quantisation


def weight_bytes(spec: ModelSpec, quantisation: str) -> int:
    """Memory of a model's weights; in the format of its checkpoint, as that has it.

    ValueError for a quantisation that is not in the table.
    """
    if quantisation not in QUANTISATIONS:
        raise unknown("quant", quantisation, QUANTISATIONS)
    dense = QUANTISATIONS[dense_format(quantisation, spec)].bits_per_weight
    bits = {Part.ATTENTION: dense, Part.NETWORKS: dense, Part.EXPERTS: QUANTISATIONS[quantisation].bits_per_weight}
    if spec.stored is not None and spec.stored.name == quantisation:
        bits = dict(spec.stored.bits_by_part)
    parts = spec.parameters_by_part
    rest = spec.num_parameters - sum(parts.values())
    return round(sum(count * bits.get(part, BF16_BITS) for part, count in parts.items()) / 8) + rest * BF16_BYTES
