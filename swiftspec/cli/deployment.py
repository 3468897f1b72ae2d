"""Deployment described by flags."""

from pathlib import Path
from typing import Any

from swiftspec.planner.deployment import Deployment

__all__ = ["named_deployment", "parse_settings"]

_NODE = 8  # devices of most accelerators in a node


def named_deployment(
    device: str | None,
    *,
    num_devices: int | None,
    quant: str | None,
    draft_quant: str | None,
    engine: str | None,
    settings: str | None = None,
    host_ms: float | None = None,
    context: int | None,
    op_tables: Path | None,
    output_tokens: int | None = None,
    draft_kv_budget: int | None = None,
    expert_parallel: bool = False,
    expert_correlation: float | None = None,
) -> Deployment | None:
    """Deployment on a named device; None without a name.

    Without a number of devices it has those of a node, 8; all else that is not given is as `Deployment` has it.

    Raises
    ------
    ValueError
        If an argument is given without a device, or is not known for that device.
    """
    fields: dict[str, Any] = {
        "quant": quant,
        "draft_quant": draft_quant,
        "engine": engine,
        "settings": None if settings is None else parse_settings(settings),
        "host_s": None if host_ms is None else host_ms / 1e3,
        "context": context,
        "output_tokens": output_tokens,
        "draft_kv_budget": draft_kv_budget,
        "expert_parallel": expert_parallel or None,
        "expert_correlation": expert_correlation,
        "op_tables": op_tables,
    }
    given = {field: value for field, value in fields.items() if value is not None}
    if device is not None:
        return Deployment(device=device, num_devices=num_devices or _NODE, **given)
    for field, value in given.items():
        flag, shown = {"settings": ("set", settings), "host_s": ("host-ms", host_ms)}.get(
            field, (field.replace("_", "-"), value)
        )
        raise ValueError(f"--{flag} is {shown}; it needs --device, which names the hardware to plan for")
    return None


def parse_settings(text: str) -> dict[str, str]:
    """`max_num_seqs=128,block_size=32` as a mapping. ValueError, one sentence, for anything else."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        word, equals, value = part.partition("=")
        word = word.strip().removeprefix("--").replace("-", "_")
        if not (equals and word and value.strip()):
            raise ValueError(f"--set has {part!r}; expected NAME=VALUE, such as max_num_seqs=128")
        if word in found:
            raise ValueError(f"--set names {word} twice; expected it once")
        found[word] = value.strip()
    return found
