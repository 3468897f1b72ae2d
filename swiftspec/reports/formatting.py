"""Formatting of figures as text: milliseconds, percentages and speeds exist only here and on the way out."""

from collections.abc import Mapping

from swiftspec.artifacts.latency import Provenance
from swiftspec.artifacts.plan import Explored, Goal, Plan

__all__ = [
    "count",
    "engine",
    "estimated",
    "gigabytes",
    "known_errors",
    "milliseconds",
    "money",
    "objective",
    "percent",
    "provenance_shares",
    "signed_percent",
    "speed",
]

_ENGINES = {
    "auto": "auto, which is nobody's serving engine: kernels as the op tables have them, the fastest all-reduce, and "
    "as little time around them as any engine takes",
    "swiftspec": "swiftspec, SwiftSpec's own kernels as published for int4",
    "vllm-int4": "vllm-int4, vLLM's forwards in int4 as SwiftSpec's authors measured them",
    "vllm": "vLLM's kernels, and its time around them",
    "sglang": "SGLang's kernels; of the time around them nothing is known, so TensorRT-LLM's, which is the least known",
    "trtllm": "TensorRT-LLM's kernels, and its time around them",
}


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


def engine(plan: Plan) -> str:
    """Whose forwards the plan assumes."""
    if plan.engine is None:
        return "not stated in this plan" if plan.quantisation else "this project's own, as measured on this machine"
    text = _ENGINES.get(plan.engine, plan.engine)
    if plan.engine == "auto" and "int4" in plan.quantisation.values():
        return f"{text}; forwards in int4 are SwiftSpec's, as published"
    return text


def known_errors(plan: Plan) -> str:
    """What the 95 % intervals include beside the prompts' spread, and what they cannot; empty if nothing is known."""
    known = [f"{name} ({percent(error)})" for name, error in plan.known_errors.items() if error is not None]
    unknown = [name for name, error in plan.known_errors.items() if error is None]
    if not known and not unknown:
        return ""
    text = f"95 % intervals include the spread of prompts and the known errors of {', '.join(known)}" if known else ""
    missing = f"the error of {', '.join(unknown)} is not known, and not in them" if unknown else ""
    return "; ".join(filter(None, [text, missing]))


def estimated(text: str, cell: Explored) -> str:
    """The figure as it is, or with a sign that it is estimated from short simulations."""
    return f"~{text}" if cell.estimated else text


def provenance_shares(shares: Mapping[Provenance, float]) -> str:
    """`measured 93 %, interpolated 7 %`, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{provenance} {share * 100:.0f} %" for provenance, share in ordered if share >= 0.005)
