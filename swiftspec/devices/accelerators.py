"""Accelerators by name: datasheet figures, dense (without sparsity), and the memory that drivers report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftspec.errors import FieldError
from swiftspec.models.names import resolve, unknown

__all__ = ["DEVICES", "ClusterSpec", "DeviceSpec", "named_device", "registered_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One accelerator.

    Parameters
    ----------
    name : str
    memory_bytes : int
        As the driver reports it (`nvidia-smi`): up to 7 % more than the decimal gigabytes that a device is sold by. A
        process can allocate 0.4 to 1.3 % less, which is covered by the share that a plan leaves free.
    memory_bandwidth_Bps : float
    peak_flops : mapping
        FLOP/s (or integer operations/s) of dense matrix products, by dtype.
    link_bandwidth_Bps : float
        To its peers in a node, all links together, one direction.
    devices_per_node : int
        In the usual node.
    source : str
        Of all but the memory's size.
    memory_source : str
        A public output of `nvidia-smi` on such a device.
    """

    name: str
    memory_bytes: int
    memory_bandwidth_Bps: float
    peak_flops: Mapping[str, float]
    link_bandwidth_Bps: float
    devices_per_node: int
    source: str
    memory_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Equal nodes of one kind of device.

    A forward is divided within a node. Between nodes roles send only token ids, so the bandwidth there does not matter;
    roles that exchange hidden states are in one node.

    Parameters
    ----------
    device : DeviceSpec
    num_devices : int
        In total; nodes are filled one after another.
    """

    device: DeviceSpec
    num_devices: int

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


_MiB = 2**20
_HOPPER_FLOPS = {"bf16": 989.4e12, "fp8": 1978.9e12, "int8": 1978.9e12}

DEVICES: dict[str, DeviceSpec] = {
    device.name: device
    for device in (
        DeviceSpec(
            name="h100-sxm",
            memory_bytes=81559 * _MiB,
            memory_bandwidth_Bps=3.35e12,
            peak_flops=_HOPPER_FLOPS,
            link_bandwidth_Bps=450e9,
            devices_per_node=8,
            source="NVIDIA H100 Tensor Core GPU datasheet (SXM5)",
            memory_source="81559MiB, github.com/NVIDIA/nccl/issues/1264",
        ),
        DeviceSpec(
            name="h200-sxm",
            memory_bytes=143771 * _MiB,
            memory_bandwidth_Bps=4.8e12,
            peak_flops=_HOPPER_FLOPS,
            link_bandwidth_Bps=450e9,
            devices_per_node=8,
            source="NVIDIA H200 Tensor Core GPU datasheet (SXM)",
            memory_source="143771MiB, github.com/sgl-project/sglang/issues/3196",
        ),
        DeviceSpec(
            name="h800-sxm",
            memory_bytes=81559 * _MiB,
            memory_bandwidth_Bps=3.35e12,
            peak_flops=_HOPPER_FLOPS,
            link_bandwidth_Bps=200e9,
            devices_per_node=8,
            source="H100's; NVLink at 400 GB/s in both directions together, arXiv 2505.09343",
            memory_source="H100's; the memory is the same",
        ),
        DeviceSpec(
            name="a100-sxm",
            memory_bytes=81920 * _MiB,
            memory_bandwidth_Bps=2.039e12,
            peak_flops={"bf16": 312e12, "int8": 624e12},
            link_bandwidth_Bps=300e9,
            devices_per_node=8,
            source="NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM)",
            memory_source="81920MiB, github.com/modal-labs/modal-client/pull/2797",
        ),
        DeviceSpec(
            name="l40s",
            memory_bytes=46068 * _MiB,
            memory_bandwidth_Bps=864e9,
            peak_flops={"bf16": 362.05e12, "fp8": 733e12, "int8": 733e12},
            link_bandwidth_Bps=32e9,
            devices_per_node=8,
            source="NVIDIA L40S datasheet; no NVLink, PCIe Gen4 x16",
            memory_source="46068MiB, github.com/modal-labs/modal-client/pull/2797",
        ),
        DeviceSpec(
            name="b200",
            memory_bytes=183359 * _MiB,
            memory_bandwidth_Bps=8e12,
            peak_flops={"bf16": 2.25e15, "fp8": 4.5e15, "int8": 4.5e15, "fp4": 9e15},
            link_bandwidth_Bps=900e9,
            devices_per_node=8,
            source="NVIDIA DGX B200 datasheet, an eighth of the system",
            memory_source="183359MiB, github.com/NVIDIA/TensorRT-LLM/issues/10278",
        ),
    )
}


def named_device(name: str) -> DeviceSpec:
    """The device of exactly this name. ValueError with the closest names if there is none."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    return DEVICES[name]


def registered_device(name: str, *, field: str = "device") -> str:
    """Registered name of a device from an informal one, such as `h100`.

    Raises
    ------
    ValueError
        With the closest names if there is none, or the choices if there are several.
    """
    found = resolve(field, name, dict.fromkeys(DEVICES, ()))
    if found is None:
        raise unknown(field, name, DEVICES)
    return found
