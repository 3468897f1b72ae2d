"""The three decoders in fp32 or coarser: by compiled kernels, by torch, and on static buffers."""

from pathlib import Path

import pytest
import torch

from swiftspec.engine.model.cpu import model as cpu_model
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.ops import reference_ops
from swiftspec.engine.model.gpu.weights import WeightFormat


def load_kernels(directory: Path, *, dtype: torch.dtype = torch.float32) -> CpuDecoder:
    """By compiled kernels in fp32, where there is a compiler."""
    return CpuDecoder(directory, dtype=dtype)


def load_torch(directory: Path, *, dtype: torch.dtype = torch.float32) -> CpuDecoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_model, "load_library", lambda: None)
        return CpuDecoder(directory, dtype=dtype)


def load_static(directory: Path, *, dtype: torch.dtype = torch.float32) -> GpuDecoder:
    """On a GPU if there is one: then forwards are graphs, and tests ask whether they are replayed rightly."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return GpuDecoder.load(directory, weight_format=WeightFormat(dtype=dtype), device=device, ops=reference_ops())
