"""Formatting of figures as text: milliseconds, percentages and speeds exist only here and on the way out."""

from collections.abc import Mapping

from swiftspec.artifacts.gain import Gain, Verdict
from swiftspec.artifacts.plan import Explored, Plan
from swiftspec.engines import ENGINES
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.timing.latency import Provenance


def milliseconds(seconds: float) -> str:
    """Milliseconds with two or three significant figures."""
    value = seconds * 1e3
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def signed_percent(share: float) -> str:
    return f"{share * 100:+.1f} %"


def speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f}"


def gigabytes(num_bytes: float) -> str:
    """Decimal gigabytes, as in datasheets."""
    return f"{num_bytes / 1e9:.1f}"


def count(number: int, singular: str) -> str:
    """Number with its noun: `1 device`, `2 devices`."""
    return f"{number} {singular}{'' if number == 1 else 's'}"


def money(amount: float) -> str:
    """Amount with two decimals; below 1, with three significant figures."""
    return f"{amount:.2f}" if amount >= 1 else f"{amount:.3g}"


def objective(plan: Plan) -> str:
    """Objective and limits of a plan: `cost, at most 4.00 ms per token, 2 per device and hour`."""
    goal, parts = plan.goal, [str(plan.goal.objective)]
    if plan.under_load is not None:
        parts = ["goodput" if plan.under_load.goal.is_limited else "mean end-to-end time"]
    if goal.min_tokens_per_s is not None:
        parts.append(f"at least {goal.min_tokens_per_s:g} tokens/s")
    if goal.tpot_s is not None:
        parts.append(f"at most {milliseconds(goal.tpot_s)} ms per token")
    if goal.ttft_s is not None:
        parts.append(f"at most {milliseconds(goal.ttft_s)} ms to the first token")
    if goal.max_devices is not None:
        parts.append(f"at most {count(goal.max_devices, 'device')}")
    if goal.splits:
        parts.append(f"split {' or '.join(goal.splits)}")
    if goal.price_per_hour is not None:
        parts.append(f"{goal.price_per_hour:g} per device and hour")
    return ", ".join(parts)


def engine(plan: Plan) -> str:
    """Engine whose forwards the plan assumes, in words."""
    if plan.engine is None:
        return "not stated in this plan" if plan.quantisation else "this project's own, as measured on this machine"
    described = ENGINES.get(plan.engine)
    if not plan.quantisation:  # a plan on a profile, which is of this engine's own server
        return f"{described.full_name if described else plan.engine}, as measured"
    text = (described.kernels or f"{described.full_name}'s kernels and host time") if described else plan.engine
    if plan.host_s is not None:
        text += f"; a host time of {milliseconds(plan.host_s)} ms a step, given"
    if plan.kv_dtype == "fp8":
        text += "; keys and values are in fp8 (lossy)"
    if plan.layout:
        text += f"; devices are in the layout {plan.layout}"
    if described is SWIFTSPEC and "int4" in plan.quantisation.values():
        return f"{text}; forwards in int4 are SwiftSpec's, as published"
    return text


def drafting(gain: Gain) -> str:
    """`Drafting gains: serial_chain is 2.77 times as fast as plain decoding (90 % interval 2.30 to 3.33).`"""
    is_open = gain.verdict is Verdict.OPEN
    speed = f"{gain.policy} is {gain.ratio:.2f} times as fast as plain decoding"
    interval = f"90 % interval {gain.low:.2f} to {gain.high:.2f}"
    said = "Whether drafting gains is open" if is_open else f"Drafting {gain.verdict}"
    return f"{said}: {speed} ({interval}){f'; {gain.closed_by}' if is_open else ''}."


def known_errors(plan: Plan) -> str:
    """Errors that the 95 % intervals include besides the spread of prompts, and those missing; empty without any."""
    known = [f"{name} ({percent(error)})" for name, error in plan.known_errors.items() if error is not None]
    unknown = [name for name, error in plan.known_errors.items() if error is None]
    text = f"95 % intervals include the spread of prompts and the known errors of {', '.join(known)}" if known else ""
    missing = f"the error of {', '.join(unknown)} is unknown and not included" if unknown else ""
    return "; ".join(filter(None, [text, missing]))


def estimated(text: str, cell: Explored) -> str:
    """The figure, marked with ~ if it is estimated from short simulations."""
    return f"~{text}" if cell.estimated else text


def provenance_shares(shares: Mapping[Provenance, float]) -> str:
    """Shares of provenances, `measured 93 %, interpolated 7 %`, largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{provenance} {share * 100:.0f} %" for provenance, share in ordered if share >= 0.005)


def shape_text(option: str) -> str:
    """Shape of a described option, `verify_rows=8, expand_rows=4` of `swiftspec 1+1 (...)`; empty if it has none."""
    return option.partition(" (")[2].removesuffix(")")
