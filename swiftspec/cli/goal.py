"""Goal of a plan, and its limits, from flags."""

import math

from swiftspec.artifacts.plan import Goal, Objective

__all__ = ["make_goal"]


def make_goal(
    objective: str | None,
    *,
    min_tokens_per_s: float | None = None,
    max_tpot_ms: float | None = None,
    max_ttft_ms: float | None = None,
    max_gpus: int | None = None,
    split: str | None = None,
    price_per_hour: float | None = None,
) -> Goal:
    """Goal stated by flags; a minimum speed without an objective asks for the fewest devices.

    Raises
    ------
    ValueError
        Naming the flag.
    """
    for flag, value in (
        ("--min-tokens-per-s", min_tokens_per_s),
        ("--max-tpot-ms", max_tpot_ms),
        ("--max-ttft-ms", max_ttft_ms),
        ("--price-per-hour", price_per_hour),
    ):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{flag} is {value}; expected a positive number")
    if objective is None:
        objective = Objective.TOKENS_PER_S if min_tokens_per_s is None else Objective.DEVICES
    if objective == Objective.COST and price_per_hour is None:
        raise ValueError("--price-per-hour is missing; --objective cost needs the price of a device per hour")
    if objective == Objective.DEVICES and (min_tokens_per_s, max_tpot_ms, max_ttft_ms) == (None, None, None):
        raise ValueError("--min-tokens-per-s is missing; --objective devices needs a speed to reach")
    return Goal(
        objective=Objective(objective),
        min_tokens_per_s=min_tokens_per_s,
        max_tpot_s=None if max_tpot_ms is None else max_tpot_ms / 1e3,
        max_ttft_s=None if max_ttft_ms is None else max_ttft_ms / 1e3,
        max_devices=max_gpus,
        splits=() if split is None else tuple(part.strip() for part in split.split(",")),
        price_per_hour=price_per_hour,
    )
