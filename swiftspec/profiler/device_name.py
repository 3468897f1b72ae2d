"""Name of the measured device."""

import torch

from swiftspec.devices.local import num_devices_here
from swiftspec.files.document import Origin

__all__ = ["origin_on"]


def origin_on(device: str) -> Origin:
    """Origin of this command, with the name that the processor or the GPUs give themselves."""
    origin = Origin.here()
    if device != "cuda":
        return origin
    return origin.model_copy(update={"device": f"{torch.cuda.get_device_name()}, {num_devices_here(device)} of them"})
