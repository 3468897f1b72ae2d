"""A thread's own share of a GPU: a stream, of a green context where it shall not use every multiprocessor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.cuda.green_contexts import GreenContext

__all__ = ["own_stream"]


@contextmanager
def own_stream(device: str, num_sms: int = 0) -> Iterator[None]:
    """What this thread launches meanwhile goes to a stream that no other thread uses; nothing happens on a CPU.

    Parameters
    ----------
    device : str
        `cpu` or `cuda:N`, the current GPU.
    num_sms : int
        Of a green context, which the driver rounds up to what it can divide (on Hopper, multiples of 8); 0 is all.
        Contexts of several threads are made one by one, and torch does not promise that their multiprocessors differ.

    Raises
    ------
    ValueError
        If this torch has no streams of green contexts, or the GPU has fewer multiprocessors.
    """
    if device == "cpu":
        yield
    elif not num_sms:
        with torch.cuda.stream(torch.cuda.Stream(device)):
            yield
    else:
        context = _green_context(torch.device(device), num_sms)  # which has to live as long as its stream is used
        with torch.cuda.stream(context.Stream()):
            yield


def _green_context(device: torch.device, num_sms: int) -> Any:
    most = torch.cuda.get_device_properties(device).multi_processor_count
    if not 0 < num_sms <= most:
        raise ValueError(f"num_sms is {num_sms}; expected 1 to {most}, which {device} has")
    if not hasattr(GreenContext, "Stream"):
        raise ValueError(f"num_sms is {num_sms}, but torch {torch.__version__} has no streams of green contexts")
    return GreenContext.create(num_sms=num_sms, device_id=device.index)
