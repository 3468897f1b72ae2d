"""Options, hooks and fixtures of the pytest plugin.

    pytest --swiftspec-plan plan.json --swiftspec-prompts prompts.jsonl

pytest loads this module in every run of everyone who has installed the package, so it imports nothing but pytest until
one of its options is given, and changes nothing without them. Files that they name are read and checked before any
test runs.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from swiftspec.artifacts.plan import Plan
    from swiftspec.artifacts.planned import Planned
    from swiftspec.artifacts.report import PolicyReport, Report
    from swiftspec.progress import Progress, Stages

_REPEATS = 3  # as `swiftspec validate` has it
_Value = TypeVar("_Value")
_SUITE = pytest.StashKey["_Suite"]()
_REPORT = pytest.StashKey["Report"]()
_CLOCK = pytest.StashKey["Clock"]()


class _Suite(NamedTuple):
    """The plan, its policies to measure, in its order, always including the chosen one, and the options' values."""

    planned: "Planned"
    policies: Sequence[str]
    given: Mapping[str, Any]


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


class Clock:
    """A clock that a benchmark's rounds set themselves, so that each round lasts exactly the measured time."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def validation_clock(self) -> float:
        """Current time in seconds. pytest-benchmark stores this function's name as the row's timer."""
        return self._now_s

    def record(self, benchmark: "BenchmarkFixture", durations_s: Sequence[float]) -> None:
        left_s = iter(durations_s)

        def start_at_zero() -> None:
            self._now_s = 0.0

        def last_as_measured() -> None:
            self._now_s = next(left_s, 0.0)  # --benchmark-cprofile calls more often than there are rounds

        benchmark.pedantic(last_as_measured, setup=start_at_zero, rounds=len(durations_s))


def extra_info(policy: "PolicyReport", report: "Report", plan: "Plan") -> dict[str, Any]:
    """Contents of a stored row besides its times. Errors are predicted / measured - 1 of tokens/s."""
    retraced = policy.retraced_error
    provenance = plan.candidates[policy.policy].prediction.provenance
    return {
        "policy": policy.policy,
        "candidate": policy.candidate,
        "chosen": policy.policy == report.chosen,
        "predicted_tokens_per_s": policy.predicted.tokens_per_s,
        "measured_tokens_per_s": policy.measured.tokens_per_s,
        "error": policy.error.tokens_per_s,
        "error_margin": policy.error_margin,
        "retimed_error": policy.retimed_error,
        "retraced_error": None if retraced is None else retraced.tokens_per_s,
        "predicted_tokens_per_round": policy.predicted.tokens_per_round,
        "measured_tokens_per_round": policy.measured.tokens_per_round,
        "identical_output": policy.identical_output,
        "regret": report.regret,
        "rank_correlation": report.rank_correlation,
        "provenance": {str(name): share for name, share in provenance.items()},
        "target": str(plan.target),
        "draft": str(plan.draft),
        "num_prompts": report.num_prompts,
        "repeats": len(policy.repeats),
        "plan_sha256": report.plan_sha256,
        "device": report.origin.device,
        "versions": report.origin.versions,
    }


def table(report: "Report") -> Iterator[str]:
    """Lines: predicted and measured tokens/s of every policy, and the regret."""
    from swiftspec.reports.formatting import percent, signed_percent, speed

    layout = "{:<17} {:>10} {:>10} {:>10} {:>9} {:>10}"
    yield layout.format("policy", "predicted", "measured", "error", "±", "re-timed")
    for policy in report.policies:
        margin, retimed = policy.error_margin, policy.retimed_error
        yield layout.format(
            policy.policy,
            speed(policy.predicted.tokens_per_s),
            speed(policy.measured.tokens_per_s),
            signed_percent(policy.error.tokens_per_s),
            "" if margin is None else percent(margin),
            "" if retimed is None else signed_percent(retimed),
        )
    yield f"Regret of the choice, {report.chosen}: {percent(report.regret)}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --swiftspec-plan and the other options, as one group in pytest's --help."""
    group = parser.getgroup("swiftspec", "swiftspec: check the predictions of a plan on this machine")
    for name, (metavar, kind, text) in _OPTIONS.items():
        group.addoption(_flag(name), metavar=metavar, type=kind, default=None, help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Check the options; a mistake ends pytest here."""
    if (suite := _read_suite(config)) is not None:
        config.stash[_SUITE] = suite


def pytest_report_header(config: pytest.Config) -> str | None:
    suite = config.stash.get(_SUITE, None)
    return None if suite is None else f"swiftspec: {suite.planned}; to be measured: {', '.join(suite.policies)}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test per policy of every function that asks for `swiftspec_policy`."""
    suite = metafunc.config.stash.get(_SUITE, None)
    if suite is not None and "swiftspec_policy" in metafunc.fixturenames:
        metafunc.parametrize("swiftspec_policy", suite.policies, indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Time pytest-benchmark's rows with the measured durations; a test's own marker may name another group."""
    if _has_row(item) and item.config.pluginmanager.hasplugin("benchmark"):
        own = item.get_closest_marker("benchmark")
        clock = item.config.stash.setdefault(_CLOCK, Clock())
        settings = {"group": "seconds per token", **(own.kwargs if own else {}), "timer": clock.validation_clock}
        item.add_marker(pytest.mark.benchmark(**settings), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that asks for a row if pytest-benchmark is missing."""
    if _has_row(item) and not item.config.pluginmanager.hasplugin("benchmark"):
        pytest.fail("the benchmark fixture is missing; it comes with pytest-benchmark", pytrace=False)


@pytest.fixture(scope="session")
def swiftspec_plan(pytestconfig: pytest.Config) -> "Planned":
    """The plan of --swiftspec-plan, with its profile and trace: a swiftspec.Planned."""
    return _suite(pytestconfig).planned


@pytest.fixture(scope="session")
def swiftspec_report(pytestconfig: pytest.Config) -> "Report":
    """Predicted and measured figures of every policy: a swiftspec.Report. Measured once, when first asked for."""
    suite = _suite(pytestconfig)
    given = suite.given
    from swiftspec.api import validate
    from swiftspec.errors import EngineError

    try:
        report = validate(
            suite.planned,
            given["prompts"],
            policies=suite.policies,
            repeats=given["repeats"] or _REPEATS,
            limit=given["limit"],
            max_new_tokens=given["max_new_tokens"],
            stages=_announcing(pytestconfig),
        )
    except (ValueError, EngineError) as error:
        pytest.fail(f"--swiftspec-plan is {given['plan']}, which could not be measured: {error}", pytrace=False)
    pytestconfig.stash[_REPORT] = report
    if given["json"] is not None:
        report.save(given["json"])
    return report


@pytest.fixture
def swiftspec_policy(request: pytest.FixtureRequest) -> "PolicyReport":
    """Predicted and measured figures of one policy: the test runs once for each of the plan's.

    A test that also asks for pytest-benchmark's `benchmark` gets a row and need not call it. The row's rounds are the
    measured requests, in seconds per token, so that OPS are tokens/s; extra_info holds the prediction.
    """
    report: Report = request.getfixturevalue("swiftspec_report")
    (policy,) = (policy for policy in report.policies if policy.policy == request.param)
    if _has_row(request.node):
        benchmark: BenchmarkFixture = request.getfixturevalue("benchmark")
        durations_s = [duration_s for repeat in policy.seconds_per_token for duration_s in repeat]
        request.config.stash[_CLOCK].record(benchmark, durations_s)
        benchmark.extra_info |= extra_info(policy, report, _suite(request.config).planned.plan)
    return policy


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter", config: pytest.Config) -> None:
    if (report := config.stash.get(_REPORT, None)) is not None:
        terminalreporter.section("swiftspec: predicted and measured tokens/s")
        for line in table(report):
            terminalreporter.write_line(line)


def _suite(config: pytest.Config) -> _Suite:
    if (suite := config.stash.get(_SUITE, None)) is None:
        missing = "--swiftspec-plan is missing; the swiftspec fixtures need it, and --swiftspec-prompts"
        pytest.fail(missing, pytrace=False)
    return suite


def _has_row(item: pytest.Item) -> bool:
    return {"swiftspec_policy", "benchmark"} <= set(getattr(item, "fixturenames", ()))


def _announcing(config: pytest.Config) -> "Stages":
    """Stages that print a line each, past pytest's capture: otherwise nothing is shown for minutes."""
    terminal: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")

    @contextmanager
    def stage(name: str, /) -> "Iterator[Progress]":
        is_said = False

        def progress(_done: int, total: int, _what: str, /) -> None:
            nonlocal is_said
            if terminal is not None and not is_said:
                is_said = True
                with capture.global_and_fixture_disabled() if capture else nullcontext():
                    terminal.ensure_newline()
                    terminal.write_line(f"swiftspec: {name}, {total} steps")

        yield progress

    return stage


def _read_suite(config: pytest.Config) -> _Suite | None:
    """The suite that the options describe; None if none is given. UsageError for files that cannot be used."""
    given = {name: config.getoption(f"swiftspec_{name}") for name in _OPTIONS}
    if (first := next((name for name, value in given.items() if value is not None), None)) is None:
        return None
    for name, what in (("plan", "a plan's file"), ("prompts", "a file of prompts to measure with")):
        if given[name] is None:
            raise pytest.UsageError(f"{_flag(first)} is given without {_flag(name)}; expected {what} as well")
    if getattr(config.option, "dist", "no") != "no":
        raise pytest.UsageError(
            "--swiftspec-plan measures latencies, which other tests running at the same time would distort; "
            "expected pytest without -n"
        )
    from swiftspec.artifacts.prompts import read_prompts

    path, prompts, names, json = (given[name] for name in ("plan", "prompts", "policies", "json"))
    planned = _checked("plan", lambda: _read_planned(path, given))
    _checked("prompts", lambda: read_prompts(prompts))
    wanted = None if names is None else [name.strip() for name in names.split(",")]
    candidates = _checked("policies", lambda: planned.plan.select(wanted))
    if json is not None:
        _checked("json", lambda: _check_output(json, inputs=(path, prompts, planned.profile_path, planned.trace_path)))
    return _Suite(planned, [candidate.policy for candidate in candidates], given)


def _read_planned(path: Path, given: Mapping[str, Any]) -> "Planned":
    """The plan with its profile and trace, which may have been moved but not changed."""
    from swiftspec.artifacts.plan import Plan
    from swiftspec.artifacts.planned import Planned

    plan = Plan.load(path)
    moved = {name: file for name in ("profile", "trace") if (file := given[name])}
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
