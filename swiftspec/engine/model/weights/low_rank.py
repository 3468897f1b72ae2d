"""Weights of adapters: two thin matrices for each of a model's that they change."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from swiftspec.engine.model.weights.checkpoint import opened, weight_shapes
from swiftspec.engine.model.weights.sharding import OnDemand, cut
from swiftspec.files.reading import shown
from swiftspec.models.sharding import Shard
from swiftspec.models.spec import ModelSpec
from swiftspec.models.tenants import ADAPTER_WEIGHTS, Adapter

_NAME = re.compile(
    r"(?:base_model\.model\.)?(model\.layers\.\d{1,9}\.\w+\.\w+_proj)\.lora_([AB])(?:\.default)?\.weight"
)
_DIVIDED_BY_INPUTS = ("o_proj.weight", "down_proj.weight")  # in a TP group


class LowRank(NamedTuple):
    """What is added to the product with a weight: (x down^T) up^T."""

    down: Tensor  # [rank, in]
    up: Tensor  # [out, rank], the adapter's scale included


Adapters = Mapping[str, LowRank]  # by the name of the weight


def load_adapters(directory: Path, spec: ModelSpec) -> dict[str, LowRank]:
    """The adapter in a directory. ValueError names the file and the missing, unexpected or misshapen tensor."""
    adapter, path = Adapter.read(directory), directory / ADAPTER_WEIGHTS
    shapes = weight_shapes(spec)
    read: dict[str, dict[str, Tensor]] = {}
    with opened(path) as file:
        names = file.keys()
        for name in names:
            found = _NAME.fullmatch(name)
            if found is None or f"{found[1]}.weight" not in shapes:
                raise ValueError(f"{path}: unexpected tensor {shown(name)[1:-1]}; the target has no such projection")
            weight, part = f"{found[1]}.weight", found[2]
            num_outputs, num_inputs = shapes[weight]
            expected = (adapter.rank, num_inputs) if part == "A" else (num_outputs, adapter.rank)
            tensor = file.get_tensor(name)
            if tuple(tensor.shape) != expected:
                raise ValueError(f"{path}: tensor {name} has shape {shown(tuple(tensor.shape))}; expected {expected}")
            if not torch.isfinite(tensor).all():
                raise ValueError(f"{path}: tensor {name} has NaN or infinity; expected numbers")
            read.setdefault(weight, {})[part] = tensor.float()
    for weight, parts in read.items():
        for part in "AB":
            if part not in parts:
                raise ValueError(f"{path}: lora_{part} of {weight} is missing")
    if not read:
        raise ValueError(f"{path}: there are no tensors; expected lora_A and lora_B of some projections")
    return {weight: LowRank(parts["A"], adapter.scale * parts["B"]) for weight, parts in read.items()}


def cut_adapters(adapters: Adapters, shard: Shard) -> Adapters:
    """A rank's part: of what its weights' inputs or outputs are divided by."""

    def part(name: str, whole: LowRank) -> LowRank:
        if name.endswith(_DIVIDED_BY_INPUTS):
            return LowRank(cut(name, whole.down, shard), whole.up)
        return LowRank(whole.down, cut(name, whole.up, shard))

    return {name: part(name, whole) for name, whole in adapters.items()}


def merged(weights: Mapping[str, Tensor], adapters: Adapters) -> Mapping[str, Tensor]:
    """The weights with their adapters added, in fp32 where there is one; each made on demand."""

    def added(name: str) -> Tensor:
        weight, adapter = weights[name], adapters.get(name)
        return weight if adapter is None else torch.addmm(weight.float(), adapter.up, adapter.down)

    return OnDemand(weights, added) if adapters else weights
