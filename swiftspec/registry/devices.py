"""Accelerators by name: datasheet figures, dense (without sparsity), each with its source."""

from collections.abc import Mapping
from dataclasses import dataclass

from swiftspec.registry.names import unknown

__all__ = ["DEVICES", "ClusterSpec", "DeviceSpec", "named_device"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One accelerator.

    Parameters
    ----------
    name : str
    memory_bytes : int
    memory_bandwidth_Bps : float
    peak_flops : mapping
        FLOP/s (or integer operations/s) of dense matrix products, by dtype.
    link_bandwidth_Bps : float
        To its peers in a node, all links together, one direction.
    devices_per_node : int
        Of the usual node.
    source : str
    """

    name: str
    memory_bytes: int
    memory_bandwidth_Bps: float
    peak_flops: Mapping[str, float]
    link_bandwidth_Bps: float
    devices_per_node: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Equal nodes of one kind of device.

    Parameters
    ----------
    device : DeviceSpec
    num_devices : int
        In all; nodes are filled one after another.
    node_bandwidth_Bps : float
        Between nodes, per device, one direction; 0 where there is one node only.
    """

    device: DeviceSpec
    num_devices: int
    node_bandwidth_Bps: float = 0.0

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ValueError(f"num_devices is {self.num_devices}; expected at least 1")
        if self.num_nodes > 1 and not self.node_bandwidth_Bps > 0:
            raise ValueError(
                f"node_bandwidth_Bps is {self.node_bandwidth_Bps}; {self.num_devices} {self.device.name} are "
                f"{self.num_nodes} nodes, which need a link"
            )

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.device.devices_per_node)


_HOPPER_FLOPS = {"bf16": 989.4e12, "fp8": 1978.9e12, "int8": 1978.9e12}

DEVICES: dict[str, DeviceSpec] = {
    device.name: device
    for device in (
        DeviceSpec(
            name="h100-sxm",
            memory_bytes=80 * 10**9,
            memory_bandwidth_Bps=3.35e12,
            peak_flops=_HOPPER_FLOPS,
            link_bandwidth_Bps=450e9,
            devices_per_node=8,
            source="NVIDIA H100 Tensor Core GPU datasheet (SXM5)",
        ),
        DeviceSpec(
            name="h200-sxm",
            memory_bytes=141 * 10**9,
            memory_bandwidth_Bps=4.8e12,
            peak_flops=_HOPPER_FLOPS,
            link_bandwidth_Bps=450e9,
            devices_per_node=8,
            source="NVIDIA H200 Tensor Core GPU datasheet (SXM)",
        ),
        DeviceSpec(
            name="h800-sxm",
            memory_bytes=80 * 10**9,
            memory_bandwidth_Bps=3.35e12,
            peak_flops=_HOPPER_FLOPS,
            link_bandwidth_Bps=200e9,
            devices_per_node=8,
            source="H100's; NVLink at 400 GB/s in both directions together, arXiv 2505.09343",
        ),
        DeviceSpec(
            name="a100-sxm",
            memory_bytes=80 * 10**9,
            memory_bandwidth_Bps=2.039e12,
            peak_flops={"bf16": 312e12, "int8": 624e12},
            link_bandwidth_Bps=300e9,
            devices_per_node=8,
            source="NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM)",
        ),
        DeviceSpec(
            name="l40s",
            memory_bytes=48 * 10**9,
            memory_bandwidth_Bps=864e9,
            peak_flops={"bf16": 362.05e12, "fp8": 733e12, "int8": 733e12},
            link_bandwidth_Bps=32e9,
            devices_per_node=8,
            source="NVIDIA L40S datasheet; no NVLink, PCIe Gen4 x16",
        ),
        DeviceSpec(
            name="b200",
            memory_bytes=180 * 10**9,
            memory_bandwidth_Bps=8e12,
            peak_flops={"bf16": 2.25e15, "fp8": 4.5e15, "int8": 4.5e15},
            link_bandwidth_Bps=900e9,
            devices_per_node=8,
            source="NVIDIA DGX B200 datasheet, an eighth of the system",
        ),
    )
}


def named_device(name: str) -> DeviceSpec:
    """ValueError with the closest names if there is none of this one."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    return DEVICES[name]
