"""Accelerators by name, and the devices of this machine."""

from swiftspec.devices.accelerators import BLACKWELL, DEVICES, ClusterSpec, DeviceSpec, named_device, registered_device

__all__ = ["BLACKWELL", "DEVICES", "ClusterSpec", "DeviceSpec", "named_device", "registered_device"]
