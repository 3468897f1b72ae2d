"""Rotary position embedding as a multiplication of complex numbers. D head dimension, P positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swiftspec.models.rotary import RopeScaling
from swiftspec.models.spec import ModelSpec

__all__ = ["interleaved", "rotations"]


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of each head from (0, 1, .., D-1) to (0, D/2, 1, D/2+1, ..): rotating pairs become adjacent.

    Queries and keys are reordered alike, so their products do not change.
    """
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def rotations(spec: ModelSpec, num_positions: int) -> Tensor:
    """exp(i * position * frequency), complex64 [P, 1, D/2], for positions 0 to `num_positions` - 1."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    frequencies = 1.0 / spec.rope_theta**exponents
    if spec.rope_scaling is not None:
        frequencies = _stretched(frequencies, spec.rope_scaling)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)


def _stretched(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3: long wavelengths are stretched by `factor`, short ones left alone, those between interpolated."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    unscaled = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (unscaled + (1.0 - unscaled) / scaling.factor)
