"""ATTS measured beside its simulation, on two servers.

On a quiet machine with two cores. Each server has a core of its own, and serves its plan; this program shares both.
Questions are sampled without and with a barrier, and each run is simulated with its own turns, lengths and scores.
Criteria: mean times of samples and questions within 15 %, and the gain of no barrier within 5 %.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

from swiftspec.cli import console
from swiftspec.reports.formatting import signed_percent
from swiftspec.studies.atts.document import AttsFigures, AttsOptions, AttsRun
from swiftspec.studies.atts.scaling import AttsServer, atts, simulate_atts
from swiftspec.studies.atts.scripts import replayed_scripts
from tools.checks.criterion import Criterion, at_most
from tools.served import served

_MOST_ERROR_PERCENT, _MOST_GAIN_ERROR_PERCENT = 15, 5
_SAMPLES, _TURNS = 8, 6
_COLUMNS = ("run", "samples: mean s", "p95", "questions: mean s", "taken over", "turns")
_WITHOUT, _WITH = "without a barrier", "with a barrier"


def check(
    plan: Annotated[Path, "of the target, for one core"],
    draft_plan: Annotated[Path, "of the draft, for one core"],
    questions: Path,
    limit: Annotated[int, "questions"] = 8,
    tokens: Annotated[int, "of the longest segments"] = 24,
    end_marker: str = r"\n\n\n",
    seed: int = 0,
    out: Annotated[Path | None, "folder for the runs"] = None,
) -> Iterator[Criterion]:
    """Run, simulate and compare."""
    options = AttsOptions(
        num_samples=_SAMPLES,
        num_turns=_TURNS,
        draft_tokens=tokens,
        target_tokens=tokens,
        draft_calls=_SAMPLES,
        end_marker=end_marker,
        seed=seed,
    )
    measured, simulated, rows = dict[str, AttsFigures](), dict[str, AttsFigures](), []
    for name, run in _runs(plan, draft_plan, questions, options, limit).items():
        measured[name] = run.figures
        simulated[name] = simulate_atts(
            replayed_scripts(run), target=plan, draft=draft_plan, options=run.options
        ).figures
        errors = _errors(measured[name], simulated[name])
        rows += [
            _row(f"{name}, measured", measured[name]),
            _row("simulated", simulated[name]),
            ("error", *map(signed_percent, errors.values()), "", ""),
        ]
        if out is not None:
            run.save(out / f"{'barrier' if run.options.is_barrier else 'async'}.json")
        of_means = [(figure, 100 * abs(error)) for figure, error in errors.items() if figure != "p95"]
        yield at_most(f"{name}: simulated mean times", of_means, _MOST_ERROR_PERCENT, "%")
    console.table("Questions with eight samples each", _COLUMNS, rows)
    gains = [found[_WITH].total_s / found[_WITHOUT].total_s for found in (measured, simulated)]
    console.say(f"gain of no barrier: {gains[0]:.3f} measured, {gains[1]:.3f} simulated")
    yield at_most("simulated gain of no barrier", 100 * abs(gains[1] / gains[0] - 1), _MOST_GAIN_ERROR_PERCENT, "%")


def _runs(plan: Path, draft_plan: Path, questions: Path, options: AttsOptions, limit: int) -> Mapping[str, AttsRun]:
    """Both kinds of run on the same servers."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = []
        for core, (own, calls) in enumerate(((plan, options.target_calls), (draft_plan, options.draft_calls))):
            with _on_core(core):
                server = served(own, "--set", f"max_running={calls}", log=folder / str(core))
                servers.append(AttsServer(url=stack.enter_context(server).url))
        target, draft = servers
        return {
            name: atts(
                questions,
                target=target,
                draft=draft,
                options=options.model_copy(update={"is_barrier": name == _WITH}),
                limit=limit,
            )
            for name in (_WITHOUT, _WITH)
        }


@contextmanager
def _on_core(core: int) -> Iterator[None]:
    """Let processes that start meanwhile run on one core only."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[core % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _row(name: str, figures: AttsFigures) -> tuple[str, ...]:
    times_s = (figures.sample_s.mean, figures.sample_s.p95, figures.question_s.mean)
    return name, *(f"{each:.3f}" for each in times_s), f"{figures.taken_over:.3f}", f"{figures.turns:.2f}"


def _errors(measured: AttsFigures, simulated: AttsFigures) -> dict[str, float]:
    return {
        "samples": simulated.sample_s.mean / measured.sample_s.mean - 1,
        "p95": simulated.sample_s.p95 / measured.sample_s.p95 - 1,
        "questions": simulated.question_s.mean / measured.question_s.mean - 1,
    }
