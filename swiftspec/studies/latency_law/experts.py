"""Experts of a sparse model, from its config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftspec.files.reading import read_foreign_json, shown

# Fields of Mixtral and gpt-oss, of Qwen3-MoE and OLMoE, and of DeepSeek; then those of gpt-oss as well.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ACTIVE = ("num_experts_per_tok", "experts_per_token")
_MOST = 2**31  # far beyond any model


def expert_counts(directory: Path) -> tuple[int, int] | None:
    """Experts of each layer, and those that compute one token; None of a dense model.

    Experts that compute every token are not counted. ValueError if config.json cannot be read, or has one number only.
    """
    path = directory / "config.json"
    config = read_foreign_json(path)
    values: Mapping[str, Any] = config if isinstance(config, Mapping) else {}
    found = [_first(values, names, path) for names in (_EXPERTS, _ACTIVE)]
    if found[0] is None:
        return None
    if found[1] is None:
        raise ValueError(f"{path}: {_ACTIVE[0]} is missing; expected the experts that compute one of its tokens")
    return found[0], found[1]


def _first(values: Mapping[str, Any], names: tuple[str, ...], path: Path) -> int | None:
    for name in names:
        value = values.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise ValueError(f"{path}: {name} is {shown(value)}; expected a whole number from 1 to {_MOST}")
        return value
    return None
