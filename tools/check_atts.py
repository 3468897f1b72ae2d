"""ATTS measured beside its simulation: `python -m tools.check_atts --plan T --draft-plan D --questions Q`.

Each server has a core of its own, and serves its plan; this program shares both. Questions are sampled without and with
a barrier, and each run is simulated with its own turns, lengths and scores. Prints Markdown.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from swiftspec.studies.atts.document import AttsFigures, AttsOptions, AttsRun
from swiftspec.studies.atts.scaling import AttsServer, atts, simulate_atts
from swiftspec.studies.atts.scripts import replayed_scripts
from tools.served import served

SAMPLES, TURNS = 8, 6
HEADINGS = ("run", "samples: mean s", "p95", "questions: mean s", "taken over", "turns")


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Let processes that start meanwhile run on one core only."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[core % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def row(name: str, figures: AttsFigures) -> str:
    sample_s = figures.sample_s
    cells = (f"{sample_s.mean:.3f}", f"{sample_s.p95:.3f}", f"{figures.question_s.mean:.3f}")
    return f"| {name} | {' | '.join(cells)} | {figures.taken_over:.3f} | {figures.turns:.2f} |"


def errors(name: str, measured: AttsFigures, simulated: AttsFigures) -> str:
    pairs = (
        (simulated.sample_s.mean, measured.sample_s.mean),
        (simulated.sample_s.p95, measured.sample_s.p95),
        (simulated.question_s.mean, measured.question_s.mean),
    )
    return f"| {name} | {' | '.join(f'{found / was - 1:+.1%}' for found, was in pairs)} | | |"


def options_of(arguments: argparse.Namespace) -> AttsOptions:
    return AttsOptions(
        num_samples=SAMPLES,
        num_turns=TURNS,
        draft_tokens=arguments.tokens,
        target_tokens=arguments.tokens,
        draft_calls=SAMPLES,
        end_marker=arguments.end_marker,
        seed=arguments.seed,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--draft-plan", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24, help="of the longest segments")
    parser.add_argument("--end-marker", default=r"\n\n\n")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the runs")
    asked = parser.parse_args(arguments)
    options, runs = options_of(asked), dict[str, AttsRun]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {}
        for core, (name, plan, calls) in enumerate(
            (("target", asked.plan, options.target_calls), ("draft", asked.draft_plan, options.draft_calls))
        ):
            with on_core(core):
                server = served(plan, "--set", f"max_running={calls}", log=folder / name)
                urls[name] = stack.enter_context(server).url
        for name, is_barrier in (("without a barrier", False), ("with a barrier", True)):
            runs[name] = atts(
                asked.questions,
                target=AttsServer(url=urls["target"]),
                draft=AttsServer(url=urls["draft"]),
                options=options.model_copy(update={"is_barrier": is_barrier}),
                limit=asked.limit,
            )
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    simulated = {}
    for name, run in runs.items():
        simulated[name] = simulate_atts(
            replayed_scripts(run), target=asked.plan, draft=asked.draft_plan, options=run.options
        )
        lines += [
            row(f"{name}, measured", run.figures),
            row("simulated", simulated[name].figures),
            errors("error", run.figures, simulated[name].figures),
        ]
        if asked.out is not None:
            run.save(asked.out / f"{'barrier' if run.options.is_barrier else 'async'}.json")
    gains = [
        found["with a barrier"].figures.total_s / found["without a barrier"].figures.total_s
        for found in (runs, simulated)
    ]
    lines.append(f"\ngain of no barrier: {gains[0]:.3f} measured, {gains[1]:.3f} simulated")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
