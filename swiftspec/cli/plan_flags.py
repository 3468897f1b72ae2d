"""Objects that the options of `swiftspec plan` stand for: the deployment, the goal, the load, the search."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftspec.artifacts.distributions import Process
from swiftspec.artifacts.goal import Goal, Objective
from swiftspec.artifacts.load_options import LoadOptions, usual_max_running
from swiftspec.artifacts.workload import Workload
from swiftspec.cli.command import refuse, refuse_settings
from swiftspec.cli.limits import given_load, parse_limits
from swiftspec.cli.settings import PLANNER, parse_settings, typed
from swiftspec.cli.verbs.plans import PlanFlags
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.errors import FieldError
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.load import Load
from swiftspec.planner.search.options import SearchOptions

_NODE = 8  # devices of most accelerators in a node
_OF_A_DEVICE = ("host_ms", "draft_kv_budget", "expert_correlation")  # settings
_PROMPT_TOKENS, _OUTPUT_TOKENS = 512, 256  # of the requests of a process


def compared_clients(asked: PlanFlags) -> tuple[int, ...]:
    """Loads at which drafts are compared, of `closed:1,4,16`, or of `closed:8` without a draft; otherwise empty."""
    process, _, text = (asked.load or "").partition(":")
    is_open_question = not asked.draft and asked.policy == "auto" and asked.fleet is None
    if process != Process.CLOSED or not ("," in text or is_open_question):
        return ()
    clients = _whole_numbers(text.rstrip(","))
    if clients is None:
        raise ValueError(f"--load is {asked.load!r}; expected numbers of clients, such as closed:1,4,16,64")
    return clients


def _whole_numbers(text: str) -> tuple[int, ...] | None:
    """From `1,2,4,8`; None if a part is no whole number."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else None


def deployment_of(asked: PlanFlags) -> Deployment | None:
    """Deployment on a named device, on a node without a number of them; None without a name.

    ValueError: if an argument is given without a device, or is not known for that device.
    """
    found = parse_settings(asked.settings)
    own = typed(found, PLANNER)
    rest = {word: value for word, value in found.items() if word not in PLANNER}
    if rest and (asked.engine or SWIFTSPEC.name).partition("@")[0] == SWIFTSPEC.name:
        known = ", ".join(PLANNER)
        raise ValueError(f"--set {next(iter(rest))} is unknown; expected {known}, or the words of another --engine")
    if asked.device is None:
        _refuse_without_device(asked, own, rest)
        return None
    fields: dict[str, Any] = {
        "engine": asked.engine,
        "settings": rest or None,
        "host_s": None if "host_ms" not in own else own["host_ms"] / 1e3,
        "context": asked.prompt_tokens,
        "output_tokens": asked.output_tokens,
        "op_tables": asked.op_tables,
        "layout": None if asked.layout is None else DeviceLayout.parse(asked.layout),
        **{name: own.get(name) for name in ("draft_kv_budget", "expert_correlation")},
    }
    given = {field: value for field, value in fields.items() if value is not None}
    if asked.draft_device is not None:
        given["draft_device"], given["draft_devices"] = draft_device_of(asked.draft_device)
    return Deployment(device=asked.device, num_devices=asked.devices or _NODE, **formats_of(asked.dtype), **given)


def formats_of(dtype: str | None) -> dict[str, Any]:
    """Fields of a deployment: formats of the weights, of `fp8` or of one for each model, `fp8,bf16`."""
    if dtype is None:
        return {}
    target, _, draft = dtype.partition(",")
    return {"quant": target.strip()} | ({"draft_quant": draft.strip()} if draft else {})


def draft_device_of(text: str) -> tuple[str, int]:
    """Name or file, and how many there are. ValueError for a number that is none."""
    name, colon, count = text.rpartition(":")
    if not colon:
        return text, 1
    if not (count.isascii() and count.isdigit() and int(count)):
        raise ValueError(f"--draft-device is {text}; expected NAME or FILE, or either with :N behind it")
    return name, int(count)


def _refuse_without_device(asked: PlanFlags, own: Mapping[str, Any], rest: Mapping[str, str]) -> None:
    """ValueError for what needs a device. own, rest: settings of this package, and of another engine."""
    why = "it needs --device, which names the hardware to plan for"
    refuse(asked, ("engine",), why)
    if rest:
        raise FieldError("settings", ",".join(f"{word}={text}" for word, text in rest.items()), why)
    has_lengths = asked.load is not None and not Path(asked.load).exists()  # of the requests of a process
    refuse(asked, ("op_tables", "layout", *(() if has_lengths else ("prompt_tokens", "output_tokens"))), why)
    refuse_settings({name: own[name] for name in _OF_A_DEVICE if name in own}, why)


def search_options(asked: PlanFlags) -> SearchOptions:
    """Goal, load, and what the search may choose from. ValueError naming the flag."""
    limits = parse_limits(asked.limit)
    settings = typed(parse_settings(asked.settings), PLANNER)
    load = _load(asked, limits, settings)
    num_jobs, backend = parsed_jobs(asked)
    return SearchOptions(
        policy=None if asked.policy == "auto" else asked.policy,
        goal=_goal(asked, limits),
        ranks=settings.get("ranks"),
        degrees=_parse_degrees(asked.degrees),
        seed=asked.seed,
        num_jobs=num_jobs,
        backend=backend,
        load=load,
        fleet=asked.fleet,
    )


def price_of(asked: PlanFlags) -> float | None:
    """The price of a device and hour. ValueError naming the flag."""
    price: float | None = typed(parse_settings(asked.settings), PLANNER).get("price_per_hour")
    if price is not None and not price:
        raise ValueError(f"--set price_per_hour is {price:g}; expected a positive number")
    return price


def _goal(asked: PlanFlags, limits: Mapping[str, float]) -> Goal:
    """Objective and limits; a lowest speed without an objective asks for the fewest devices."""
    price = price_of(asked)
    speed, tpot_ms, ttft_ms = (limits.get(name) for name in ("speed", "tpot", "ttft"))
    objective = Objective(asked.objective or ("tokens-per-s" if speed is None else "devices"))
    if objective is Objective.COST and price is None:
        raise ValueError("--set price_per_hour is missing; --objective cost needs the price of a device per hour")
    if objective is Objective.DEVICES and (speed, tpot_ms, ttft_ms) == (None, None, None):
        raise ValueError("--limit speed is missing; --objective devices needs a speed to reach, such as speed=200")
    return Goal(
        objective=objective,
        min_tokens_per_s=speed,
        tpot_s=None if tpot_ms is None else tpot_ms / 1e3,
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
        percentile=limits.get("p"),
        max_devices=None if (most := limits.get("devices")) is None else int(most),
        splits=() if asked.split is None else tuple(part.strip() for part in asked.split.split(",")),
        price_per_hour=price,
    )


def _load(asked: PlanFlags, limits: Mapping[str, float], settings: Mapping[str, Any]) -> Load | None:
    """The load, with the planner's settings; None without one."""
    transfer_ms = settings.get("transfer_ms")
    if asked.load is None:
        given = {
            "--limit p": limits.get("p"),
            **{f"--set {name}": settings.get(name) for name in ("max_running", "load_requests", "transfer_ms")},
            "--fleet": asked.fleet,
        }
        if flag := next((flag for flag, value in given.items() if value is not None), None):
            raise ValueError(f"{flag} is {given[flag]:g}; it needs --load")
        return None
    prompt, output = asked.prompt_tokens or _PROMPT_TOKENS, asked.output_tokens or _OUTPUT_TOKENS
    workload = given_load(asked.load, prompt_tokens=prompt, output_tokens=output)
    max_running = settings.get("max_running")
    if max_running is None and asked.fleet is not None:
        max_running = usual_max_running(asked.device or "cpu")
    if max_running is None and isinstance(workload, Workload):
        max_running = workload.arrivals.num_clients
    return Load.read(
        workload,
        most_requests=settings.get("load_requests"),
        options=LoadOptions() if max_running is None else LoadOptions(max_running=max_running),
        transfer_s=None if transfer_ms is None else transfer_ms / 1e3,
    )


def parsed_jobs(asked: PlanFlags) -> tuple[int, str | None]:
    """Processes, and the cluster that runs them if one is named: `4`, `ray` or `ray:64`. ValueError for others."""
    backend, _, count = asked.jobs.rpartition(":") if asked.jobs[-1:].isdigit() else (asked.jobs, "", "-1")
    try:
        return int(count), backend or None
    except ValueError as error:
        raise ValueError(f"--jobs is {asked.jobs!r}; expected a number, dask:N or ray:N") from error


def _parse_degrees(text: str | None) -> frozenset[int] | None:
    """From `1,2,4,8`. ValueError naming the flag."""
    if text is None:
        return None
    degrees = _whole_numbers(text)
    if degrees is None or not all(degrees):
        raise ValueError(f"--degrees is {text!r}; expected positive numbers separated by commas, such as 1,2,4,8")
    return frozenset(degrees)
