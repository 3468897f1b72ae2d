"""Limits that a plan must keep, the load that it is for, and limits of the scheduler, from flags."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths
from swiftspec.artifacts.goal import Goal, Objective
from swiftspec.artifacts.load_goal import LoadOptions, usual_max_running
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.planner.load import Load
from swiftspec.scheduler.controls.named import control_under
from swiftspec.workload import make_workload

__all__ = [
    "LIMITS",
    "Limits",
    "given_load",
    "load_options",
    "make_goal",
    "make_load",
    "parse_limits",
    "read_load",
    "refuse_limits",
]

# What `--limit` knows: how it is written, and what is expected of it.
_MILLISECONDS = "a positive number of milliseconds"
LIMITS = {
    "ttft": ("MS", _MILLISECONDS),
    "tpot": ("MS", _MILLISECONDS),
    "p": ("PERCENT", "more than 0, and at most 100 percent of the requests"),
    "speed": ("TOKENS_PER_S", "a positive number of tokens per second"),
    "devices": ("N", "a whole number of at least 1"),
}
_PER_CLIENT = 4  # requests of a closed loop that is given as a number of clients
_OPEN = 200  # requests of arrivals at a rate
_LENGTHS = (512, 256)  # tokens of its prompts and outputs


Limits = Mapping[str, float | str | None]  # settings by name, `control` and `replay`; None if not given
_FIELDS = {"kv_blocks": "num_blocks", "prefill_tokens": "prefill_rows", "gather_ms": "gather_s"}
_OWN_FLAGS = ("control", "replay", "engine", "set")


def load_options(limits: Limits, usual: LoadOptions | None = None) -> LoadOptions:
    """The limits that are given, and the usual ones for the others."""
    values = {_FIELDS.get(name, name): value for name, value in limits.items() if value is not None}
    if isinstance(gather_ms := values.get("gather_s"), float):
        values["gather_s"] = gather_ms / 1e3
    if isinstance(control := values.get("control"), str):
        control_under(control, None)
    return (usual or LoadOptions()).model_copy(update=values)


def refuse_limits(limits: Limits) -> None:
    """ValueError if a limit is given without a load."""
    for name, value in limits.items():
        if value is not None:
            flag = f"--{name}" if name in _OWN_FLAGS else f"--set {name}"
            raise ValueError(f"{flag} is {value}; it is only for --load")


def parse_limits(texts: Sequence[str] | None) -> dict[str, float]:
    """`ttft=500,tpot=8,p=95,speed=200,devices=4`, given once or several times.

    Raises
    ------
    ValueError
        Naming the limit that is unknown, given twice or out of range.
    """
    found: dict[str, float] = {}
    for part in (part.strip() for text in texts or () for part in text.split(",")):
        name, _, text = part.partition("=")
        if name not in LIMITS:
            known = ", ".join(f"{known}={unit}" for known, (unit, _) in LIMITS.items())
            raise ValueError(f"--limit has {part!r}; expected any of {known}")
        if name in found:
            raise ValueError(f"--limit names {name} twice; expected it once")
        found[name] = _number(name, text)
    return found


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    is_fitting = {"p": value <= 100, "devices": math.isfinite(value) and value == math.floor(value)}.get(name, True)
    if not (0 < value < math.inf and is_fitting):
        raise ValueError(f"--limit {name} is {text}; expected {LIMITS[name][1]}")
    return value


def make_goal(objective: str | None, limits: dict[str, float], *, split: str | None, price: float | None) -> Goal:
    """Goal stated by flags; a lowest speed without an objective asks for the fewest devices.

    limits: without a load also those on one user's mean TPOT and TTFT.

    Raises
    ------
    ValueError
        Naming the flag.
    """
    if price is not None and not 0 < price < math.inf:
        raise ValueError(f"--price-per-hour is {price}; expected a positive number")
    speed, tpot_ms, ttft_ms = (limits.get(name) for name in ("speed", "tpot", "ttft"))
    if objective is None:
        objective = Objective.TOKENS_PER_S if speed is None else Objective.DEVICES
    if objective == Objective.COST and price is None:
        raise ValueError("--price-per-hour is missing; --objective cost needs the price of a device per hour")
    if objective == Objective.DEVICES and (speed, tpot_ms, ttft_ms) == (None, None, None):
        raise ValueError("--limit speed is missing; --objective devices needs a speed to reach, such as speed=200")
    return Goal(
        objective=Objective(objective),
        min_tokens_per_s=speed,
        max_tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        max_ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        max_devices=None if (most := limits.get("devices")) is None else int(most),
        splits=() if split is None else tuple(part.strip() for part in split.split(",")),
        price_per_hour=price,
    )


def make_load(
    load: str | None,
    limits: dict[str, float],
    settings: dict[str, Any],
    *,
    prompt_tokens: int | None,
    output_tokens: int | None,
    fleet: int | None,
    device: str | None,
    role: str,
) -> Load | None:
    """Load stated by flags; None without one.

    settings: of the planner, by name. prompt_tokens, output_tokens: lengths of a load that is no file. fleet: devices
    of a fleet, if there is one. device: what it is planned for, if that is not this machine. role: all, or decode for a
    pool whose prompts are read elsewhere.

    Raises
    ------
    ValueError
        Naming the flag.
    """
    transfer_ms = settings.get("transfer_ms")
    if load is None:
        _check_without_load(limits, settings, fleet=fleet, role=role)
        return None
    if role != "decode" and transfer_ms is not None:
        raise ValueError(f"--set transfer_ms is {transfer_ms:g}; it needs --role decode")
    lengths = (prompt_tokens or _LENGTHS[0], output_tokens or _LENGTHS[1])
    asked = given_load(load, prompt_tokens=lengths[0], output_tokens=lengths[1])
    max_running = settings.get("max_running")
    if max_running is None and fleet is not None:
        max_running = usual_max_running(device or "cpu")
    if max_running is None and isinstance(asked, Workload):
        max_running = asked.arrivals.num_clients
    return Load.read(
        asked,
        ttft_s=_seconds(limits.get("ttft")),
        tpot_s=_seconds(limits.get("tpot")),
        percentile=limits.get("p"),
        most_requests=settings.get("load_requests"),
        options=None if max_running is None else LoadOptions(max_running=max_running),
        transfer_s=(transfer_ms or 0.0) / 1e3 if role == "decode" else None,
    )


def _check_without_load(limits: dict[str, float], settings: dict[str, Any], *, fleet: int | None, role: str) -> None:
    given = {
        "--limit p": limits.get("p"),
        **{f"--set {name}": settings.get(name) for name in ("max_running", "load_requests", "transfer_ms")},
        "--fleet": fleet,
    }
    for flag, value in given.items():
        if value is not None:
            raise ValueError(f"{flag} is {value:g}; it needs --load")
    if role == "decode":
        raise ValueError("--role is decode; it needs --load")


def given_load(text: str, *, prompt_tokens: int, output_tokens: int) -> Workload | Path:
    """A file of requests, or requests of one length: `closed:64` are 64 clients, `poisson:8` are 8 requests/s.

    Raises
    ------
    ValueError
        If the text begins as a process does, and is none.
    """
    if not Arrivals.parameters.get(text.partition(":")[0]) or Path(text).exists():
        return Path(text)
    arrivals = Arrivals.parse(text, field="--load")
    many = _OPEN if arrivals.num_clients is None else _PER_CLIENT * arrivals.num_clients
    return make_workload(
        arrivals,
        num_requests=None if arrivals.stages else many,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=prompt_tokens),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=output_tokens),
    )


def read_load(text: str, planned: Planned) -> tuple[Workload, Path | None]:
    """Requests to serve by a plan, and their file; those of a process are as long as the traced ones."""
    prompts = [len(each.prompt_tokens) for each in planned.trace.prompts]
    found = given_load(text, prompt_tokens=round(fmean(prompts)), output_tokens=planned.plan.max_new_tokens)
    return (found, None) if isinstance(found, Workload) else (Workload.load(found), found)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
