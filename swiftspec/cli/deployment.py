"""The deployment that flags describe."""

from pathlib import Path
from typing import Any

from swiftspec.planner.deployment import Deployment

__all__ = ["named_deployment"]


def named_deployment(
    device: str | None,
    *,
    num_devices: int,
    quant: str | None,
    draft_quant: str | None,
    engine: str | None,
    context: int | None,
    op_tables: Path | None,
    output_tokens: int | None = None,
) -> Deployment | None:
    """The deployment on a named device, None without a name; what is not given is left to `Deployment`.

    Raises
    ------
    ValueError
        If something is said of a device that is not named, or is not known of it.
    """
    fields: dict[str, Any] = {
        "quant": quant,
        "draft_quant": draft_quant,
        "engine": engine,
        "context": context,
        "output_tokens": output_tokens,
        "op_tables": op_tables,
    }
    given = {field: value for field, value in fields.items() if value is not None}
    if device is not None:
        return Deployment(device=device, num_devices=num_devices, **given)
    for field, value in given.items():
        flag = field.replace("_", "-")
        raise ValueError(f"--{flag} is {value}; it needs --device, which names a machine that is not at hand")
    return None
