"""The plugin's options and the files they name, read and checked before any test runs."""

from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from swiftspec.artifacts.planned import Planned

__all__ = ["Suite", "add_options", "read_suite"]

_REPEATS = 3  # as `swiftspec validate` has it
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Settings of a measurement.

    policies: policies to measure, in the plan's order, always including the chosen one. json: where to write the
    report.
    """

    plan_path: Path
    planned: "Planned"
    prompts: Path
    policies: tuple[str, ...]
    repeats: int
    limit: int | None
    max_new_tokens: int | None
    json: Path | None


def add_options(parser: pytest.Parser) -> None:
    """Add the options, as one group in pytest's --help."""
    group = parser.getgroup("swiftspec", "swiftspec: check the predictions of a plan on this machine")
    for name, (metavar, kind, text) in _OPTIONS.items():
        group.addoption(_flag(name), metavar=metavar, type=kind, default=None, help=text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"{text!r}; expected a whole number from 1 on")
    return int(text)


# Option: how its value is written, what makes it of that, and its help.
_OPTIONS: Mapping[str, tuple[str, Callable[[str], object], str]] = {
    "plan": ("FILE", Path, "Plan whose policies are measured, as `swiftspec plan --out FILE` writes it."),
    "prompts": ("FILE", Path, "Prompts to measure with: JSON lines, each with a `prompt`."),
    "profile": ("FILE", Path, "Where the plan's profile is now. Default: where the plan says."),
    "trace": ("FILE", Path, "Where the plan's trace is now. Default: where the plan says."),
    "policies": ("A,B", str, "Measure only these policies and the chosen one. Default: every policy of the plan."),
    "repeats": ("N", _positive, f"Repetitions; speeds are their medians. Default: {_REPEATS}."),
    "limit": ("N", _positive, "Use at most N prompts, spread over the file. Default: all."),
    "max_new_tokens": ("N", _positive, "Output tokens per prompt at most. Default: the plan's."),
    "json": ("FILE", Path, "Write the whole report, as `swiftspec validate --json FILE` does."),
}


def read_suite(config: pytest.Config) -> Suite | None:
    """Suite that the options describe; None if none is given. UsageError for files that cannot be read or measured."""
    given = [name for name in _OPTIONS if config.getoption(f"swiftspec_{name}") is not None]
    if not given:
        return None
    for name, what in (("plan", "a plan's file"), ("prompts", "a file of prompts to measure with")):
        if name not in given:
            raise pytest.UsageError(f"{_flag(given[0])} is given without {_flag(name)}; expected {what} as well")
    if getattr(config.option, "dist", "no") != "no":
        raise pytest.UsageError(
            "--swiftspec-plan measures latencies, which other tests running at the same time would distort; "
            "expected pytest without -n"
        )
    return _read(config)


def _read(config: pytest.Config) -> Suite:
    from swiftspec.artifacts.prompts import read_prompts

    path: Path = config.getoption("swiftspec_plan")
    prompts: Path = config.getoption("swiftspec_prompts")
    planned = _checked("plan", lambda: _read_planned(config, path))
    _checked("prompts", lambda: read_prompts(prompts))
    names: str | None = config.getoption("swiftspec_policies")
    wanted = None if names is None else [name.strip() for name in names.split(",")]
    candidates = _checked("policies", lambda: planned.plan.select(wanted))
    json: Path | None = config.getoption("swiftspec_json")
    if json is not None:
        _checked("json", lambda: _check_output(json, inputs=(path, prompts, planned.profile_path, planned.trace_path)))
    return Suite(
        plan_path=path,
        planned=planned,
        prompts=prompts,
        policies=tuple(candidate.policy for candidate in candidates),
        repeats=config.getoption("swiftspec_repeats") or _REPEATS,
        limit=config.getoption("swiftspec_limit"),
        max_new_tokens=config.getoption("swiftspec_max_new_tokens"),
        json=json,
    )


def _read_planned(config: pytest.Config, path: Path) -> "Planned":
    """The plan with its profile and trace, which may have been moved but not changed."""
    from swiftspec.artifacts.plan import Plan
    from swiftspec.artifacts.planned import Planned

    plan = Plan.load(path)
    moved = {name: file for name in ("profile", "trace") if (file := config.getoption(f"swiftspec_{name}"))}
    bases = {name: getattr(plan, name).model_copy(update={"path": str(file.resolve())}) for name, file in moved.items()}
    return replace(Planned.of(plan.model_copy(update=bases), path), plan=plan)


def _check_output(path: Path, *, inputs: Sequence[Path | None]) -> None:
    """ValueError if the file could not be written, or is one of those that are read."""
    from swiftspec.files.writing import locate

    try:
        destination = locate(path)
        destination.check()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror})") from error
    if destination.status is not None and any(file and file.exists() and file.samefile(path) for file in inputs):
        raise ValueError(f"{path} is read as an input; expected another file")


def _checked(name: str, read: Callable[[], _Value]) -> _Value:
    try:
        return read()
    except ValueError as error:
        raise pytest.UsageError(f"{_flag(name)}: {error}") from error


def _flag(name: str) -> str:
    return f"--swiftspec-{name.replace('_', '-')}"
