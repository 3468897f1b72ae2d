"""Accelerators by name: datasheet figures, dense (without sparsity), and the memory that drivers report."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftspec.errors import FieldError
from swiftspec.models.names import resolve, unknown

_FILE = Path(__file__).with_name("accelerators.json")
_MiB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One accelerator."""

    name: str
    # As the driver reports it (`nvidia-smi`): up to 7 % more than the decimal gigabytes that a device is sold by. A
    # process can allocate 0.4 to 1.3 % less, which is covered by the share that a plan leaves free.
    memory_bytes: int
    memory_bandwidth_Bps: float
    peak_flops: Mapping[str, float]  # FLOP/s (or integer operations/s) of dense matrix products, by dtype
    link_bandwidth_Bps: float  # to its peers in a node, all links together, one direction
    devices_per_node: int  # in the usual node
    source: str  # of all but the memory's size
    memory_source: str  # a public output of `nvidia-smi` on such a device
    # Device whose op tables it stands on, scaled to its own bandwidth and compute; empty for one with its own, or with
    # rooflines only
    op_tables: str = ""
    engines: tuple[str, ...] = ()  # those that run on it; empty if all do
    cores: int = 0  # of a CPU, all of a machine together; 0 of an accelerator
    aliases: tuple[str, ...] = ()  # shorter names that mean this one of several, such as `h100`

    def is_as_fast_as(self, other: "DeviceSpec") -> bool:
        """Whether it computes and reads as fast, whatever its links."""
        return (self.memory_bandwidth_Bps, self.peak_flops) == (other.memory_bandwidth_Bps, other.peak_flops)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Equal nodes of one kind of device.

    A forward is divided within a node. Between nodes roles send only token ids, so the bandwidth there does not matter;
    roles that exchange hidden states are in one node.
    """

    device: DeviceSpec
    num_devices: int  # in total; nodes are filled one after another

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise FieldError("num_devices", self.num_devices, "expected at least 1")

    @property
    def nodes(self) -> tuple[range, ...]:
        """Numbers of each node's devices."""
        size = self.device.devices_per_node
        return tuple(range(start, min(start + size, self.num_devices)) for start in range(0, self.num_devices, size))

    def place(self, sizes: Sequence[int]) -> tuple[range, ...] | None:
        """Devices of groups of these sizes, each in the first node with room; None if a group fits in none."""
        free = list(self.nodes)
        groups = []
        for size in sizes:
            index = next((index for index, node in enumerate(free) if len(node) >= size), None)
            if index is None:
                return None
            groups.append(free[index][:size])
            free[index] = free[index][size:]
        return tuple(groups)


def _shipped() -> Iterator[DeviceSpec]:
    """The devices of accelerators.json, each figure with its source."""
    for entry in json.loads(_FILE.read_text(encoding="utf-8"))["devices"]:
        memory_bytes = entry.pop("memory_MiB") * _MiB
        aliases, engines = (tuple(entry.pop(name, ())) for name in ("aliases", "engines"))
        yield DeviceSpec(memory_bytes=memory_bytes, aliases=aliases, engines=engines, **entry)


DEVICES: dict[str, DeviceSpec] = {device.name: device for device in _shipped()}
_WITHOUT_BF16 = {"v100", "t4", "p100"}  # of compute capability below 8.0 (github.com/vllm-project/vllm/issues/1400)
# Of data centres, for which trtllm-gen's kernels are written; other Blackwell devices do not have these.
BLACKWELL = ("b200", "b300", "gb200", "gb300")


def named_device(name: str) -> DeviceSpec:
    """The device of exactly this name. ValueError with the closest names if there is none."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES, same_numbers=True)
    return DEVICES[name]


def registered_device(name: str, *, field: str = "device") -> str:
    """Registered name for an informal one, as `h100`. ValueError with the closest names, or those that it may mean."""
    found = resolve(field, name, {known: device.aliases for known, device in DEVICES.items()})
    if found is None:
        if _WITHOUT_BF16 & set(re.split(r"[^a-z0-9]", name.lower())):
            raise FieldError(field, repr(name), "it has no bf16, which every plan needs")
        raise unknown(field, name, DEVICES, same_numbers=True)
    return found
