"""Rotary position embedding as a multiplication of complex numbers. D head dimension, P positions."""

import math

import torch
from torch import Tensor

from swiftspec.models.rotary import RopeScaling
from swiftspec.models.spec import ModelSpec


def interleaved(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder the rows of each head from (0, 1, .., D-1) to (0, D/2, 1, D/2+1, ..): rotating pairs become adjacent.

    Queries and keys are reordered alike, so their products do not change.
    """
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def rotations(spec: ModelSpec, num_positions: int) -> Tensor:
    """exp(i * position * frequency), complex64 [P, 1, D/2], for positions 0 to `num_positions` - 1.

    YaRN makes them longer than 1, by which queries and keys are multiplied.
    """
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.float32) / spec.head_dim
    positions = torch.arange(num_positions, dtype=torch.float32)
    frequencies, scaling = 1.0 / spec.rope_theta**exponents, spec.rope_scaling
    length = 1.0
    if scaling is not None and scaling.kind == "dynamic":
        frequencies = 1.0 / _dynamic_bases(spec, scaling, positions)[:, None] ** exponents
    elif scaling is not None and scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling is not None and scaling.kind == "yarn":
        frequencies, length = _by_parts(frequencies, spec, scaling), _yarn_length(scaling)
    elif scaling is not None:
        frequencies = _stretched(frequencies, scaling)
    angles = positions[:, None] * frequencies
    return torch.polar(torch.full_like(angles, length), angles).unsqueeze(1)


def _stretched(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3: long wavelengths are stretched by `factor`, short ones left alone, those between interpolated."""
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    unscaled = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (unscaled + (1.0 - unscaled) / scaling.factor)


def _dynamic_bases(spec: ModelSpec, scaling: RopeScaling, positions: Tensor) -> Tensor:
    """Base of each position [P]: beyond the original context, that of a text which ends there.

    So are a text's keys where transformers generates it token by token. It takes the base of a whole prompt for all its
    tokens; a cache that several drafts share cannot, as its keys would depend on what follows them.
    """
    ratio = (positions + 1).clamp(min=scaling.original_max_position) / scaling.original_max_position
    grown = scaling.factor * ratio - (scaling.factor - 1)
    return spec.rope_theta * grown ** (spec.head_dim / (spec.head_dim - 2))


def _by_parts(frequencies: Tensor, spec: ModelSpec, scaling: RopeScaling) -> Tensor:
    """YaRN (arXiv 2309.00071): pairs that turn often are left alone, those that turn seldom are stretched.

    Between them, from `beta_fast` to `beta_slow` turns in the original context, there is a ramp over whole pairs.
    """

    def pair(turns: float) -> float:
        wavelengths = scaling.original_max_position / (turns * 2 * math.pi)
        return spec.head_dim * math.log(wavelengths) / (2 * math.log(spec.rope_theta))

    first = max(math.floor(pair(scaling.other("beta_fast") or 32.0)), 0)
    last = min(math.ceil(pair(scaling.other("beta_slow") or 1.0)), spec.head_dim - 1)
    width = last - first or 0.001  # as in the authors' code
    stretched = ((torch.arange(len(frequencies), dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return frequencies / scaling.factor * stretched + frequencies * (1.0 - stretched)


def _yarn_length(scaling: RopeScaling) -> float:
    """Factor of queries and keys, which sharpens attention over a longer text."""

    def scale(weight: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if (stated := scaling.other("attention_factor")) is not None:
        return stated
    weight, of_all = scaling.other("mscale"), scaling.other("mscale_all_dim")
    return scale(weight) / scale(of_all) if weight and of_all else scale(1.0)
