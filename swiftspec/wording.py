"""How figures are put into words: milliseconds, percentages and speeds exist only here and on the way out."""

from collections.abc import Mapping

from swiftspec.latency import Provenance
from swiftspec.plan import Goal

__all__ = [
    "count",
    "gigabytes",
    "milliseconds",
    "money",
    "objective",
    "percent",
    "provenance_shares",
    "signed_percent",
    "speed",
]


def milliseconds(seconds: float) -> str:
    """Two or three significant figures."""
    value = seconds * 1e3
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def signed_percent(share: float) -> str:
    return f"{share * 100:+.1f} %"


def speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}"


def gigabytes(num_bytes: float) -> str:
    """Decimal gigabytes, as datasheets have them."""
    return f"{num_bytes / 1e9:.1f}"


def count(number: int, singular: str) -> str:
    """`1 device`, `2 devices`."""
    return f"{number} {singular}{'' if number == 1 else 's'}"


def money(amount: float) -> str:
    """Two decimals, or three significant figures where that is more."""
    return f"{amount:.2f}" if amount >= 1 else f"{amount:.3g}"


def objective(goal: Goal) -> str:
    """`cost, at most 4.00 ms per token, 2 per device and hour`."""
    limits = []
    if goal.min_tokens_per_s is not None:
        limits.append(f"at least {goal.min_tokens_per_s:g} tokens/s")
    if goal.max_tpot_s is not None:
        limits.append(f"at most {milliseconds(goal.max_tpot_s)} ms per token")
    if goal.max_ttft_s is not None:
        limits.append(f"at most {milliseconds(goal.max_ttft_s)} ms to the first")
    if goal.max_devices is not None:
        limits.append(f"at most {count(goal.max_devices, 'device')}")
    if goal.splits:
        limits.append(f"split {' or '.join(goal.splits)}")
    if goal.price_per_hour is not None:
        limits.append(f"{goal.price_per_hour:g} per device and hour")
    return ", ".join([goal.objective, *limits])


def provenance_shares(shares: Mapping[Provenance, float]) -> str:
    """`measured 93 %, interpolated 7 %`, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{provenance} {share * 100:.0f} %" for provenance, share in ordered if share >= 0.005)
