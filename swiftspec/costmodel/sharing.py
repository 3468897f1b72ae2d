"""Sharing costs of composed profiles: the keys and values that a further sequence of a step reads."""

from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.devices import DeviceSpec
from swiftspec.models import sharded
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import SharingCost

__all__ = ["composed_cost"]


def composed_cost(
    role: Role,
    spec: ModelSpec,
    *,
    device: DeviceSpec,
    degree: int,
    sequence_s: float = 0.0,
    most_slots: int | None = None,
) -> SharingCost:
    """Cost of a further sequence on a group: its KV cache, read once for all of its rows, at the memory's bandwidth.

    Forwards of several sequences and of one with equally many rows differ in their attention, and in the experts that
    they touch, whose cost is `sequence_s`. This leaves out the
    engine's own time for a sequence (scheduling, block tables, sampling) and the imbalance of sequences of different
    lengths, which would add to the cost; and that the attention of one short sequence does not fill a device, and that
    of many rows computes for longer than it reads, which both hide some of it. In the op tables of an H100 a further
    sequence of 2048 slots of a 70B model costs 1.2 times as much on one device, and half as much on each of four.
    """
    shard = sharded(spec, degree)
    slot_bytes = shard.kv_bytes_per_token("bf16")
    slot_s = slot_bytes / (device.memory_bandwidth_Bps * CONSTANTS["bandwidth_share"])
    return SharingCost(
        role=role,
        degree=degree,
        peer_busy=False,
        sequence_s=sequence_s,
        slot_s=slot_s,
        most_slots=most_slots,
        provenance=Provenance.COMPOSED,
    )
