"""`swiftspec study latency`: latency over loads, the law fitted to it, and when speculation pays."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from swiftspec.artifacts.distributions import Arrivals, Lengths, Process
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned, files_of
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.cli.limits import Limits, load_options
from swiftspec.cli.load_test import read_api_key
from swiftspec.cli.outputs import check_outputs
from swiftspec.devices.contention import watch_contention
from swiftspec.files.reading import shown
from swiftspec.reports.formatting import percent
from swiftspec.studies.latency_law.coverage import ExpertCoverage
from swiftspec.studies.latency_law.document import Sweep
from swiftspec.studies.latency_law.printing import show_sweep
from swiftspec.studies.latency_law.sweeper import Measuring
from swiftspec.studies.latency_law.sweeping import sweep as serve_at_rates
from swiftspec.workload import make_workload

_SIMULATED_REQUESTS, _MEASURED_REQUESTS = 400, 100
_LENGTHS = "fixed:128"


class Drawn(NamedTuple):
    """Flags of the requests: a workload, or the distributions of their lengths."""

    workload: Path | None = None
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    requests: int | None = None


class Measured(NamedTuple):
    """Flags of a measurement."""

    measure: bool = False
    url: str | None = None
    plain_url: str | None = None
    api_key_file: Path | None = None
    prompts: Path | None = None
    limit: int | None = None


class Sparse(NamedTuple):
    """Flags of a sparse target."""

    experts: int | None = None
    active: int | None = None


def sweep(
    *,
    plan: Path | None,
    policy: str | None,
    num_draft_tokens: str | None,
    drawn: Drawn,
    measured: Measured,
    sparse: Sparse,
    limits: Limits,
    seed: int,
    jobs: int,
    plot: Path | None = None,
    json_path: Path | None = None,
) -> Sweep:
    """Sweep, print and save. limits: values of flags."""
    inputs: Mapping[str, Path | None] = {
        "--plan": plan,
        "--workload": drawn.workload,
        "--prompts": measured.prompts,
        "--api-key-file": measured.api_key_file,
    }
    check_outputs(inputs=inputs, plot=plot, json=json_path)
    measuring = _measuring(measured)
    planned = None
    if plan is not None:
        made = Plan.load(plan)
        check_outputs(inputs=files_of(made, plan), plot=plot, json=json_path)
        planned = Planned.of(made, plan)
    asked = _requests(drawn, is_measured=measuring is not None, seed=seed)
    with watch_contention() as contention:
        swept = serve_at_rates(
            planned,
            asked,
            policy=policy,
            num_draft_tokens=_lengths(num_draft_tokens),
            options=load_options(limits),
            measuring=measuring,
            coverage=_coverage(sparse),
            seed=seed,
            num_jobs=jobs,
            stages=console.progress,
        )
    show_sweep(swept)
    if measured.measure and contention.is_busy:
        console.paragraph(f"Other processes took {percent(contention.others_share)} of the cores meanwhile")
    if plot is not None:
        from swiftspec.reports.figures import save_figure
        from swiftspec.studies.latency_law.figure import latency_by_load

        save_figure(plot, latency_by_load(swept))
    if json_path is not None:
        swept.save(json_path)
    return swept


def _measuring(flags: Measured) -> Measuring | None:
    """What is to be measured. ValueError for flags that need another one."""
    is_wanted = flags.measure or flags.url is not None
    if flags.measure and flags.url is not None:
        raise ValueError(f"--url is {flags.url}, but --measure starts an engine here; expected one of both")
    if flags.plain_url is not None and flags.url is None:
        raise ValueError(f"--plain-url is {flags.plain_url}; it needs --url, the server that it is compared with")
    if is_wanted and flags.prompts is None:
        raise ValueError("--prompts is missing; expected texts for what is measured")
    if not is_wanted:
        for name in ("prompts", "limit", "api_key_file"):
            if (value := getattr(flags, name)) is not None:
                raise ValueError(f"--{name.replace('_', '-')} is {value}; it needs --measure or --url")
        return None
    assert flags.prompts is not None
    return Measuring(
        prompts=flags.prompts,
        limit=flags.limit,
        url=flags.url,
        plain_url=flags.plain_url,
        api_key=read_api_key(flags.api_key_file),
    )


def _requests(drawn: Drawn, *, is_measured: bool, seed: int) -> Workload:
    """The requests, whatever their arrivals."""
    if drawn.workload is not None:
        for name, value in drawn._asdict().items():
            if name != "workload" and value is not None:
                raise ValueError(f"--{name.replace('_', '-')} is {value}; requests are those of --workload")
        return Workload.load(drawn.workload)
    return make_workload(
        Arrivals(process=Process.CLOSED, num_clients=1),
        num_requests=drawn.requests or (_MEASURED_REQUESTS if is_measured else _SIMULATED_REQUESTS),
        prompt_tokens=Lengths.parse(drawn.prompt_tokens or _LENGTHS, field="--prompt-tokens"),
        output_tokens=Lengths.parse(drawn.output_tokens or _LENGTHS, field="--output-tokens"),
        seed=seed,
    )


def _lengths(text: str | None) -> list[int]:
    """Numbers of draft tokens, `1,2,4,8`."""
    return list(_whole_numbers(text)) if text is not None else []


def _whole_numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        try:
            yield int(part)
        except ValueError:
            raise ValueError(
                f"--num-draft-tokens is {shown(text)}, where {shown(part)} is no whole number; expected 1,2,4,8"
            ) from None


def _coverage(sparse: Sparse) -> ExpertCoverage | None:
    if sparse.experts is None and sparse.active is None:
        return None
    if sparse.experts is None or sparse.active is None:
        missing = "--experts" if sparse.experts is None else "--active"
        raise ValueError(f"{missing} is missing; a sparse target has a number of experts, and some are active")
    return ExpertCoverage(experts=sparse.experts, active=sparse.active)
