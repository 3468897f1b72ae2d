"""What there is to measure on."""

import torch

from swiftspec.documents import Origin

__all__ = ["num_gpus", "origin_on"]


def num_gpus() -> int:
    """GPUs that torch can use; none in a build without CUDA."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def origin_on(device: str) -> Origin:
    """This command, here, on the processor or on the GPUs, by their own name."""
    origin = Origin.here()
    if device != "cuda":
        return origin
    return origin.model_copy(update={"device": f"{torch.cuda.get_device_name()}, {num_gpus()} of them"})
