"""Accelerators by name, and the devices of this machine."""

from swiftspec.devices.accelerators import DEVICES, ClusterSpec, DeviceSpec, named_device, registered_device

__all__ = ["DEVICES", "ClusterSpec", "DeviceSpec", "named_device", "registered_device"]
