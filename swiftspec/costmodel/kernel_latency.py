"""Latency of one operation on a device, by roofline; other sources of kernel latencies begin from it."""

from typing import NamedTuple

from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.costmodel.routing import on_fullest
from swiftspec.devices import DeviceSpec
from swiftspec.models.layer_parts import Experts, GroupedAttention, LatentAttention, LinearAttention
from swiftspec.models.quantisation import BF16_BYTES, QUANTISATIONS
from swiftspec.timing.latency import Provenance

NCCL = "nccl"
ONE_SHOT = "one_shot"
_KV_BYTES = {"bf16": 2, "fp8": 1}
_STATE_BYTES = 4


# Rows of a sequence that engines verify over the latent cache itself; more are a prompt's, for which they make keys and
# values of every head: vLLM and SGLang with FlashMLA, whose decoding kernel takes so many.
_MOST_ABSORBED = 128


class KernelTime(NamedTuple):
    """Seconds of one operation inside a captured graph, and their provenance."""

    seconds: float
    provenance: Provenance


class UnknownShapeError(ValueError):
    """Tables that lack a model's shape, in one sentence."""


class Kernels:
    """Seconds of single operations on one device, or between the devices of a group: here by roofline.

    Sizes are those of a device's shard. Subclasses know some operations better. An operation takes its bytes over
    achieved bandwidth or its FLOP over achieved FLOP/s, plus the time to start a kernel.

    A kernel that reads b bytes takes a + b / (s * peak), so its achieved bandwidth falls with the shard's size. Both
    constants are fitted to the bf16 GEMMs of the Hopper tables. Of a device's collectives only the links are known, so
    they are one-step all-reduces with the latency of the Hopper ones.
    """

    def __init__(self, device: DeviceSpec) -> None:
        self.device = device
        self._bandwidth_Bps = device.memory_bandwidth_Bps * CONSTANTS["bandwidth_share"]

    def gemm(self, *, rows: int, n: int, k: int, quant: str) -> KernelTime:
        """y[rows, n] = x[rows, k] W[n, k]^T with weights in `quant`, activations in bf16 on either side."""
        num_bytes = n * k * QUANTISATIONS[quant].bytes_per_weight + rows * (n + k) * BF16_BYTES
        computing_s = 2.0 * rows * n * k / self._flops(quant)
        return self._roofline(max(num_bytes / self._bandwidth_Bps, computing_s))

    def attention(
        self, part: GroupedAttention, *, rows: int, context: int, sequences: int, kv_dtype: str
    ) -> KernelTime:
        """Attention of all sequences' rows, each over `context` tokens of its own and causally over earlier rows."""
        per_sequence = rows / sequences
        attended = context + (per_sequence + 1) / 2
        num_bytes = sequences * (context + per_sequence) * part.kv_values * _KV_BYTES[kv_dtype]
        computing_s = 4.0 * rows * attended * part.query_size / self._flops("bf16")
        return self._roofline(max(num_bytes / self._bandwidth_Bps, computing_s))

    def collectives(self, degree: int) -> tuple[str, ...]:
        """Implementations of an all-reduce over `degree` devices."""
        return (ONE_SHOT,) if degree > 1 else ()

    def all_reduce(self, *, num_bytes: int, degree: int, implementation: str) -> KernelTime:
        """Sum of a tensor of `num_bytes` that every device holds."""
        if implementation != ONE_SHOT:
            raise ValueError(f"implementation is {implementation!r}; expected {ONE_SHOT!r}")
        return self._exchange((degree - 1) * num_bytes)

    def all_gather(self, *, num_bytes: int, degree: int) -> KernelTime:
        """Concatenation of shards to a tensor of `num_bytes` on every device."""
        return self._exchange((degree - 1) * num_bytes / degree)

    def elementwise(self, *, num_bytes: float) -> KernelTime:
        """A small kernel (norm, rotary embedding, activation) that moves `num_bytes` in all."""
        seconds = CONSTANTS["small_kernel_s"] + num_bytes / self._bandwidth_Bps
        return KernelTime(seconds, Provenance.ROOFLINE)

    def experts(self, part: Experts, *, rows: int, touched: float, hidden_size: int, quant: str) -> KernelTime:
        """Routed experts of one layer on one device, for rows that touch `touched` of all devices' experts.

        UnknownShapeError if there are tables, but none of such experts.
        """
        holders = part.num_devices if part.is_divided_whole else 1
        held = on_fullest(touched, num_experts=part.num_experts, num_devices=holders) * holders
        read_bytes = held / part.num_experts * part.routed_parameters(hidden_size)
        reading_s = read_bytes * QUANTISATIONS[quant].bytes_per_weight / self._bandwidth_Bps
        computing_s = self.experts_computing_s(part, rows=rows, hidden_size=hidden_size, quant=quant)
        return self._roofline(max(reading_s, computing_s))

    def experts_computing_s(self, part: Experts, *, rows: int, hidden_size: int, quant: str) -> float:
        """Seconds in which the rows' experts cannot be computed faster, however few they are."""
        computed = part.num_active / part.num_experts * part.routed_parameters(hidden_size)
        return 2.0 * rows * computed / self._flops(quant)

    def latent_attention(
        self, part: LatentAttention, *, rows: int, context: int, sequences: int, kv_dtype: str = "bf16"
    ) -> KernelTime:
        """Latent attention as `attention`, without its projections."""
        attended = context + (rows / sequences + 1) / 2
        width = part.kv_rank + part.rotary_dim
        reading_s = sequences * (context + rows / sequences) * width * _KV_BYTES[kv_dtype] / self._bandwidth_Bps
        computing_s = 2.0 * rows * attended * part.num_heads * (width + part.kv_rank) / self._flops("bf16")
        absorbed = self._roofline(max(reading_s, computing_s))
        expanded = self.expanded_attention(part, rows=rows, context=context, sequences=sequences)
        return min(absorbed, expanded) if expanded else absorbed

    def expanded_attention(
        self, part: LatentAttention, *, rows: int, context: int, sequences: int
    ) -> KernelTime | None:
        """Latent attention as engines read prompts, over keys and values of every head; None for rows that verify.

        To make those of the rows themselves takes what absorbing them into queries and outputs does, which is counted
        beside attention either way.
        """
        if rows <= _MOST_ABSORBED * sequences:
            return None
        attended = context + (rows / sequences + 1) / 2
        head = part.plain_dim + part.rotary_dim + part.value_dim
        made = part.num_heads * (context + rows / sequences) * sequences
        moving_s = 2.0 * made * head * BF16_BYTES / self._bandwidth_Bps
        making = 2.0 * sequences * context * part.num_heads * part.kv_rank * (part.plain_dim + part.value_dim)
        attending = 2.0 * rows * attended * part.num_heads * head
        return self._roofline(max(moving_s, (making + attending) / self._flops("bf16")))

    def linear_attention(self, part: LinearAttention, *, rows: int, sequences: int) -> KernelTime:
        """Convolution and recurrence over the rows of every sequence, without projections."""
        # A state is read and written; every row updates it, and reads a result from it.
        moving_s = 2 * sequences * part.state_values * _STATE_BYTES / self._bandwidth_Bps
        updating = rows * part.num_value_heads * part.key_dim * part.value_dim
        return self._roofline(max(moving_s, 6.0 * updating / self._flops("bf16")))

    def _exchange(self, received_bytes: float) -> KernelTime:
        wire_s = received_bytes / (self.device.link_bandwidth_Bps * CONSTANTS["link_share"])
        return KernelTime(CONSTANTS["exchange_floor_s"] + wire_s, Provenance.ROOFLINE)

    def _roofline(self, seconds: float) -> KernelTime:
        return KernelTime(CONSTANTS["gemm_floor_s"] + seconds, Provenance.ROOFLINE)

    def _flops(self, quant: str) -> float:
        """Peak FLOP/s of a format; other weights of 4 bits and int8 are multiplied in bf16, so they have bf16's."""
        peaks = self.device.peak_flops
        name = "fp8" if quant == "fp8" else QUANTISATIONS[quant].peak
        return peaks.get(name, peaks["bf16"]) * CONSTANTS["flops_share"]
