"""What the options of `swiftspec plan` stand for: the deployment, the goal, the load, the search."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftspec.artifacts.distributions import Process
from swiftspec.cli.limits import make_goal, make_load, parse_limits
from swiftspec.cli.settings import PLANNER, parse_settings, typed
from swiftspec.cli.verbs.decide import PlanFlags
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.search.options import SearchOptions

__all__ = ["compared_clients", "deployment_of", "parsed_jobs", "search_options"]

_NODE = 8  # devices of most accelerators in a node


def compared_clients(asked: PlanFlags) -> tuple[int, ...]:
    """Loads at which drafts are compared, of `closed:1,4,16`, or of `closed:8` without a draft; otherwise empty."""
    process, _, text = (asked.load or "").partition(":")
    is_open_question = not asked.draft and asked.policy == "auto"
    if process != Process.CLOSED or not ("," in text or is_open_question):
        return ()
    parts = [part.strip() for part in text.rstrip(",").split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ValueError(f"--load is {asked.load!r}; expected numbers of clients, such as closed:1,4,16,64")
    return tuple(map(int, parts))


def deployment_of(asked: PlanFlags) -> Deployment | None:
    """Deployment on a named device; None without a name.

    Without a number of devices it has those of a node, 8; all else that is not given is as `Deployment` has it.

    Raises
    ------
    ValueError
        If an argument is given without a device, or is not known for that device.
    """
    found = parse_settings(asked.settings)
    own = typed(found, PLANNER)
    rest = {word: value for word, value in found.items() if word not in PLANNER}
    if rest and (asked.engine or SWIFTSPEC.name).partition("@")[0] == SWIFTSPEC.name:
        known = ", ".join(PLANNER)
        raise ValueError(f"--set {next(iter(rest))} is unknown; expected {known}, or the words of another --engine")
    fields: dict[str, Any] = {
        "engine": asked.engine,
        "settings": rest or None,
        "host_s": None if "host_ms" not in own else own["host_ms"] / 1e3,
        "context": asked.prompt_tokens,
        "output_tokens": asked.output_tokens,
        "op_tables": asked.op_tables,
        **{name: own.get(name) for name in ("draft_kv_budget", "expert_parallel", "expert_correlation")},
    }
    given = {field: value for field, value in fields.items() if value is not None}
    if asked.device is None:
        _check_without_device(asked, given, own, rest)
        return None
    if asked.dtype is not None:
        target, _, draft = asked.dtype.partition(",")
        given |= {"quant": target.strip()} | ({"draft_quant": draft.strip()} if draft else {})
    return Deployment(device=asked.device, num_devices=asked.devices or _NODE, **given)


def _check_without_device(
    asked: PlanFlags, given: Mapping[str, Any], own: Mapping[str, Any], rest: Mapping[str, str]
) -> None:
    has_lengths = asked.load is not None and not Path(asked.load).exists()  # of the requests of a process
    names = {"context": "--prompt-tokens", "output_tokens": "--output-tokens", "host_s": "--set host_ms"}
    for field, value in given.items():
        if field in ("context", "output_tokens") and has_lengths:
            continue
        flag = f"--set {field}" if field in PLANNER else names.get(field, f"--{field.replace('_', '-')}")
        shown = own.get("host_ms") if field == "host_s" else value
        if field == "settings":
            flag, shown = "--set", ",".join(f"{word}={text}" for word, text in rest.items())
        raise ValueError(f"{flag} is {shown}; it needs --device, which names the hardware to plan for")


def search_options(asked: PlanFlags) -> SearchOptions:
    """Goal, load, and what the search may choose from. ValueError naming the flag."""
    limits = parse_limits(asked.limit)
    load = make_load(
        asked.load,
        limits,
        typed(parse_settings(asked.settings), PLANNER),
        prompt_tokens=asked.prompt_tokens,
        output_tokens=asked.output_tokens,
        fleet=asked.fleet,
        device=asked.device,
        role=asked.role,
    )
    of_one_user = limits if load is None else {name: limits[name] for name in limits.keys() & {"speed", "devices"}}
    num_jobs, backend = parsed_jobs(asked)
    return SearchOptions(
        policy=None if asked.policy == "auto" else asked.policy,
        goal=make_goal(asked.objective, of_one_user, split=asked.split, price=asked.price_per_hour),
        ranks=asked.ranks,
        degrees=_parse_degrees(asked.degrees),
        seed=asked.seed,
        num_jobs=num_jobs,
        backend=backend,
        load=load,
        fleet=asked.fleet,
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
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(f"--degrees is {text!r}; expected positive numbers separated by commas, such as 1,2,4,8")
    return frozenset(map(int, parts))
