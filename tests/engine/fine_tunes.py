"""Fine-tunes and adapters of a model directory, made without training: noise on some layers, random low ranks."""

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftspec.engine.model.weights.checkpoint import weight_shapes
from swiftspec.models.spec import ModelSpec

ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ALPHA = 24.0


def fine_tune(base: Path, directory: Path, *, layers: Iterable[int], seed: int) -> Path:
    """A copy whose `layers` differ from those of `base` in every matrix and norm."""
    shutil.copytree(base, directory)
    weights = load_file(directory / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)
    for name, weight in weights.items():
        if any(name.startswith(f"model.layers.{layer}.") for layer in layers):
            weight += 0.2 * weight.std(correction=0) * torch.randn(weight.shape, generator=generator)
            if "norm" in name:
                weight += 0.1
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def write_adapter(
    base: Path, directory: Path, *, projections: Sequence[str] = ALL_PROJECTIONS, rank: int = 4, seed: int = 0
) -> Path:
    """A LoRA adapter of every layer's `projections`, as PEFT writes it."""
    directory.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in weight_shapes(ModelSpec.from_directory(base)).items():
        if len(shape) == 2 and name.split(".")[-2] in projections:
            prefix = f"base_model.model.{name.removesuffix('.weight')}"
            down, up = (
                torch.randn(rank, shape[1], generator=generator),
                torch.randn(shape[0], rank, generator=generator),
            )
            tensors |= {f"{prefix}.lora_A.weight": 0.1 * down, f"{prefix}.lora_B.weight": 0.1 * up}
    save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "bias": "none", "target_modules": [*projections]}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    return directory


def merge(base: Path, adapter: Path, directory: Path) -> Path:
    """The model with the adapter added to its weights: W + alpha / r B A."""
    shutil.copytree(base, directory)
    weights = load_file(directory / "model.safetensors")
    parts = load_file(adapter / "adapter_model.safetensors")
    for name in parts:
        if "lora_A" in name:
            down, up = parts[name], parts[name.replace("lora_A", "lora_B")]
            target = name.removeprefix("base_model.model.").replace("lora_A.", "")
            weights[target] = weights[target] + ALPHA / len(down) * (up @ down)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
