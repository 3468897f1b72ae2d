"""`--limit`, `--load` and the limits of the scheduler, as several verbs take them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.scheduler.controls.named import control_under
from swiftspec.workload import make_workload

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


Limits = Mapping[str, float | str | None]  # settings by name; None if not given
_FIELDS = {"kv_blocks": "num_blocks", "prefill_tokens": "prefill_rows", "gather_ms": "gather_s"}


def load_options(limits: Limits, usual: LoadOptions | None = None) -> LoadOptions:
    """The limits that are given, and the usual ones for the others."""
    values = {_FIELDS.get(name, name): value for name, value in limits.items() if value is not None}
    if isinstance(gather_ms := values.get("gather_s"), float):
        values["gather_s"] = gather_ms / 1e3
    if isinstance(control := values.get("control"), str):
        control_under(control, None)
    return (usual or LoadOptions()).model_copy(update=values)


def parse_limits(texts: Sequence[str] | None) -> dict[str, float]:
    """Limits by name, of `ttft=500,tpot=8`, given once or several times. ValueError naming the one that is wrong."""
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


def given_load(text: str, *, prompt_tokens: int, output_tokens: int) -> Workload | Path:
    """A file of requests, or requests of one length. ValueError if the text begins as a process does, and is none."""
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
