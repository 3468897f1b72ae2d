"""Helpers of every kernel file: interpreter detection, exact products, argument checks, errors.

A kernel and its definition in plain torch, `*_reference`, are functions of one file. The kernel's raises ValueError for
a shape, dtype, device or layout that it does not support. With `pdl` (programmatic dependent launch) it starts while
its predecessor ends, on CUDA only, sm_90 and newer.

Triton decides between compiler and interpreter when a kernel is decorated, so TRITON_INTERPRET counts at import.
"""

import os
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOATS = (torch.float32, torch.float16, torch.bfloat16)  # dtypes of every operand that is not quantised
INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"


@triton.jit
def dot(left, right, total, UPCAST: tl.constexpr):
    """total + left right, in fp32. UPCAST under the interpreter, which silently multiplies bf16 wrongly."""
    if UPCAST:
        left = left.to(tl.float32)
        right = right.to(tl.float32)
    return tl.dot(left, right, total, input_precision="ieee")


def check_shape(name: str, tensor: Tensor, expected: Sequence[int | None], *, why: str = "") -> None:
    """ValueError unless the shape is the expected one; None stands for any size."""
    shape = tuple(tensor.shape)
    if len(shape) != len(expected) or any(
        size not in (None, actual) for size, actual in zip(expected, shape, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name} has shape {shape}; expected ({wanted}){why and ': ' + why}")


def check_layout(**tensors: Tensor) -> None:
    """ValueError unless all are contiguous, on the device of the first one."""
    (first, reference), *others = tensors.items()
    for name, tensor in others:
        if tensor.device != reference.device:
            raise ValueError(f"{name} is on {tensor.device}; expected {reference.device}, the device of {first}")
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"{name} has strides {tensor.stride()} for shape {tuple(tensor.shape)}; expected contiguous"
            )


def check_dtype(supported: Sequence[torch.dtype], /, **tensors: Tensor) -> None:
    """ValueError unless each tensor has one of the supported dtypes."""
    for name, tensor in tensors.items():
        if tensor.dtype not in supported:
            raise ValueError(f"{name} is {tensor.dtype}; supported: {', '.join(map(str, supported))}")
