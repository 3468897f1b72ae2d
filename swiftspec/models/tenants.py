"""Tenants of a model: fine-tunes and adapters of it that the same processes serve."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from swiftspec.files.reading import shown
from swiftspec.models.adapters import Adapter, is_adapter
from swiftspec.models.spec import ModelSpec

__all__ = ["check_same_shape", "tenant_spec"]


def tenant_spec(directory: Path, base: ModelSpec) -> ModelSpec:
    """Spec of a tenant of the model `base`: its own, or that model's if it is an adapter. ValueError if it is none."""
    if is_adapter(directory):
        Adapter.read(directory)
        return base
    spec = ModelSpec.from_directory(directory)
    check_same_shape(spec, base, directory)
    return spec


def check_same_shape(spec: ModelSpec, base: ModelSpec, directory: Path) -> None:
    """ValueError, naming the field, unless the model in a directory has the shape of `base`."""
    for field in dataclasses.fields(spec):
        own, expected = getattr(spec, field.name), getattr(base, field.name)
        if own != expected and field.name != "eos_token_ids":  # a fine-tune may have its own
            raise ValueError(
                f"{directory}: {field.name} is {shown(own)}; a tenant has that of the target, {shown(expected)}"
            )
