"""Flags of `swiftspec plan`, and the objects that they stand for: the deployment, the goal, the load, the search."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftspec.artifacts.distributions import Process
from swiftspec.cli.limits import make_goal, make_load, parse_limits
from swiftspec.cli.settings import PLANNER, parse_settings, typed
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.search.options import SearchOptions

__all__ = ["PlanFlags"]

_NODE = 8  # devices of most accelerators in a node


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFlags:
    """Values of the flags; None or empty if not given."""

    target: str
    drafts: tuple[str, ...] = ()
    out: Path | None = None
    profile: Path | None = None
    trace: Path | None = None
    device: str | None = None
    devices: int | None = None
    dtype: str | None = None
    inflate: str | None = None
    engine: str | None = None
    settings: tuple[str, ...] = ()
    op_tables: Path | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    dataset: str | None = None
    acceptance: tuple[str, ...] = ()
    load: str | None = None
    limits: tuple[str, ...] = ()
    fleet: int | None = None
    role: str = "all"
    objective: str | None = None
    price_per_hour: float | None = None
    policy: str | None = None
    split: str | None = None
    degrees: str | None = None
    ranks: int | None = None
    seed: int = 0
    jobs: str = "-1"
    report: Path | None = None
    plot: Path | None = None
    json_path: Path | None = None

    @property
    def compared_clients(self) -> tuple[int, ...]:
        """Loads at which drafts are compared, of `closed:1,4,16`, or of `closed:8` without a draft; otherwise empty."""
        process, _, text = (self.load or "").partition(":")
        is_open_question = not self.drafts and self.policy is None
        if process != Process.CLOSED or not ("," in text or is_open_question):
            return ()
        parts = [part.strip() for part in text.rstrip(",").split(",")]
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"--load is {self.load!r}; expected numbers of clients, such as closed:1,4,16,64")
        return tuple(map(int, parts))

    def deployment(self) -> Deployment | None:
        """Deployment on a named device; None without a name.

        Without a number of devices it has those of a node, 8; all else that is not given is as `Deployment` has it.

        Raises
        ------
        ValueError
            If an argument is given without a device, or is not known for that device.
        """
        found = parse_settings(self.settings)
        own = typed(found, PLANNER)
        rest = {word: value for word, value in found.items() if word not in PLANNER}
        if rest and (self.engine or SWIFTSPEC.name).partition("@")[0] == SWIFTSPEC.name:
            known = ", ".join(PLANNER)
            raise ValueError(f"--set {next(iter(rest))} is unknown; expected {known}, or the words of another --engine")
        fields: dict[str, Any] = {
            "engine": self.engine,
            "settings": rest or None,
            "host_s": None if "host_ms" not in own else own["host_ms"] / 1e3,
            "context": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "op_tables": self.op_tables,
            **{name: own.get(name) for name in ("draft_kv_budget", "expert_parallel", "expert_correlation")},
        }
        given = {field: value for field, value in fields.items() if value is not None}
        if self.device is None:
            self._check_without_device(given, own, rest)
            return None
        if self.dtype is not None:
            target, _, draft = self.dtype.partition(",")
            given |= {"quant": target.strip()} | ({"draft_quant": draft.strip()} if draft else {})
        return Deployment(device=self.device, num_devices=self.devices or _NODE, **given)

    def _check_without_device(self, given: Mapping[str, Any], own: Mapping[str, Any], rest: Mapping[str, str]) -> None:
        has_lengths = self.load is not None and not Path(self.load).exists()  # of the requests of a process
        names = {"context": "--prompt-tokens", "output_tokens": "--output-tokens", "host_s": "--set host_ms"}
        for field, value in given.items():
            if field in ("context", "output_tokens") and has_lengths:
                continue
            flag = f"--set {field}" if field in PLANNER else names.get(field, f"--{field.replace('_', '-')}")
            shown = own.get("host_ms") if field == "host_s" else value
            if field == "settings":
                flag, shown = "--set", ",".join(f"{word}={text}" for word, text in rest.items())
            raise ValueError(f"{flag} is {shown}; it needs --device, which names the hardware to plan for")

    def options(self) -> SearchOptions:
        """Goal, load, and what the search may choose from. ValueError naming the flag."""
        limits = parse_limits(self.limits)
        load = make_load(
            self.load,
            limits,
            typed(parse_settings(self.settings), PLANNER),
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            fleet=self.fleet,
            device=self.device,
            role=self.role,
        )
        of_one_user = limits if load is None else {name: limits[name] for name in limits.keys() & {"speed", "devices"}}
        num_jobs, backend = self.parsed_jobs()
        return SearchOptions(
            policy=self.policy,
            goal=make_goal(self.objective, of_one_user, split=self.split, price=self.price_per_hour),
            ranks=self.ranks,
            degrees=_parse_degrees(self.degrees),
            seed=self.seed,
            num_jobs=num_jobs,
            backend=backend,
            load=load,
            fleet=self.fleet,
        )

    def parsed_jobs(self) -> tuple[int, str | None]:
        """Processes, and the cluster that runs them if one is named: `4`, `ray` or `ray:64`. ValueError for others."""
        backend, _, count = self.jobs.rpartition(":") if self.jobs[-1:].isdigit() else (self.jobs, "", "-1")
        try:
            return int(count), backend or None
        except ValueError as error:
            raise ValueError(f"--jobs is {self.jobs!r}; expected a number, dask:N or ray:N") from error


def _parse_degrees(text: str | None) -> frozenset[int] | None:
    """From `1,2,4,8`. ValueError naming the flag."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise ValueError(f"--degrees is {text!r}; expected positive numbers separated by commas, such as 1,2,4,8")
    return frozenset(map(int, parts))
