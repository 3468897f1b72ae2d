"""Published runs of ATTS replayed: `python -m tools.atts_published RESULTS`, a folder of the authors' results.

The results are those of github.com/menik1126/Asynchronous-Test-Time-Scaling, a JSON file per sample with all segments,
scores and decisions, and the sample's time. Turns, lengths and decisions are replayed on two simulated servers that are
known by their token times only. These are fitted to the mean and the median of the samples' times of the first folder:
the other percentiles, the single samples, the questions and the other folders are predictions. Prints Markdown.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import simpy
from scipy.optimize import minimize

from swiftspec.policies.effects import Role
from swiftspec.studies.atts.document import AttsFigures, AttsOptions, AttsQuestion, Ending
from swiftspec.studies.atts.scripts import QuestionScript, SampleScript, TurnScript
from swiftspec.studies.atts.selection import Barrier, ByThreshold, Selection
from swiftspec.studies.atts.simulated_servers import Pace, PacedServer, SimulatedServer
from swiftspec.studies.atts.simulation import simulate

NUM_SAMPLES = 16
TOKENS = 500
LEAST_SCORE = 1.6  # 1 and the share of the calibration scores below: from here on a segment was taken over
PROMPT_TOKENS = 150
PERCENTILES = (5, 25, 50, 75, 90, 95, 99)

Read = tuple[list[TurnScript], float]  # turns of a sample, without their last decision, and its time


def read_sample(path: Path) -> Read:
    """A sample's turns in characters, scored 1 and the share of calibration scores below their own; and its seconds."""
    content = json.loads(path.read_text(encoding="utf-8"))
    turns: list[TurnScript] = []
    drafted = 0
    for entry in content["full_history"]:
        if entry["model"] == "small":
            drafted = len(entry["output"] or "")
        elif entry["model"] == "eval_ppl":
            turns.append(TurnScript(drafted, 1 + entry["percentile"], 0))
        else:
            turns[-1] = turns[-1]._replace(target_tokens=max(1, len(entry["output"] or "")))
    return turns, content["duration_seconds"]


def read_questions(folder: Path, *, seed: int = 0) -> tuple[list[QuestionScript], list[float]]:
    """Scripts in tokens, and the seconds of all samples in their order.

    A segment that is not a sample's last was cut at 500 tokens; their median says how many characters a token has. What
    the target would have written elsewhere is drawn from what it wrote.
    """
    read = [read_sample(path) for path in sorted(folder.glob("problem_*.json"))]
    if not read or len(read) % NUM_SAMPLES:
        raise SystemExit(f"{folder}: {len(read)} results; expected {NUM_SAMPLES} of every question")
    inner = [turn for turns, _ in read for turn in turns[:-1]]
    rates = [
        np.median([turn.draft_tokens for turn in inner]) / TOKENS,
        np.median([turn.target_tokens for turn in inner if turn.target_tokens]) / TOKENS,
    ]
    written = [turn.target_tokens for turns, _ in read for turn in turns if turn.target_tokens]
    rng = np.random.default_rng(seed)

    def tokens(turn: TurnScript) -> TurnScript:
        target = turn.target_tokens or int(rng.choice(written))
        counted = [round(float(size / rate)) for size, rate in zip((turn.draft_tokens, target), rates, strict=True)]
        return TurnScript(min(TOKENS, max(1, counted[0])), turn.score, min(TOKENS, max(1, counted[1])))

    samples = [SampleScript(tuple(map(tokens, turns)), Ending.MARKER) for turns, _ in read]
    scripts = [
        QuestionScript(
            question_id=str(first // NUM_SAMPLES),
            prompt_tokens=PROMPT_TOKENS,
            samples=tuple(samples[first : first + NUM_SAMPLES]),
        )
        for first in range(0, len(samples), NUM_SAMPLES)
    ]
    return scripts, [seconds for _, seconds in read]


def servers(env: simpy.Environment, paces: Mapping[Role, Pace]) -> Mapping[Role, SimulatedServer]:
    return {role: PacedServer(env, pace) for role, pace in paces.items()}


def replay(
    scripts: Sequence[QuestionScript], paces: Mapping[Role, Pace], *, is_barrier: bool = False
) -> list[AttsQuestion]:
    """All questions, with the recorded decisions or, with a barrier, as many by rank."""
    options = AttsOptions(is_barrier=is_barrier)
    budget = np.mean(
        [turn.score >= LEAST_SCORE for script in scripts for sample in script.samples for turn in sample.turns]
    )
    found = []
    for script in scripts:
        just_below = np.nextafter(LEAST_SCORE, 0.0)
        selection: Selection = Barrier(NUM_SAMPLES, float(budget)) if is_barrier else ByThreshold(float(just_below))
        found.append(simulate(script, selection, options, partial(servers, paces=paces)))
    return found


def paces_of(draft_token_s: float, target_token_s: float, score_token_s: float = 0.0) -> dict[Role, Pace]:
    return {
        Role.DRAFT: Pace(token_s=draft_token_s),
        Role.TARGET: Pace(token_s=target_token_s, prompt_token_s=score_token_s),
    }


def times(questions: Sequence[AttsQuestion]) -> np.ndarray:
    return np.array([sample.ended_s for question in questions for sample in question.samples])


def fitted(scripts: Sequence[QuestionScript], seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds per token of the draft and of the target with which mean and median of the samples' times are right."""
    wanted = np.log([np.mean(seconds), np.median(seconds)])

    def error(logarithms: np.ndarray) -> float:
        simulated = times(replay(scripts, paces_of(*np.exp(logarithms).tolist())))
        found = np.log([simulated.mean(), np.median(simulated)])
        return float(((found - wanted) ** 2).sum())

    best = minimize(error, np.log([0.006, 0.02]), method="Nelder-Mead", options={"fatol": 1e-7, "maxfev": 60})
    draft_token_s, target_token_s = np.exp(best.x).tolist()
    return draft_token_s, target_token_s


def makespans(values: Sequence[float]) -> list[float]:
    return [max(values[first : first + NUM_SAMPLES]) for first in range(0, len(values), NUM_SAMPLES)]


def table(published: Sequence[float], simulated: np.ndarray) -> list[str]:
    measured = np.array(published)
    rows = [("mean", measured.mean(), simulated.mean())]
    rows += [(f"p{rank}", np.percentile(measured, rank), np.percentile(simulated, rank)) for rank in PERCENTILES]
    rows.append(("questions, mean", np.mean(makespans(published)), np.mean(makespans(simulated.tolist()))))
    lines = ["| sample times, s | published | simulated | error |", "|---|---|---|---|"]
    return lines + [f"| {name} | {was:.1f} | {found:.1f} | {found / was - 1:+.0%} |" for name, was, found in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, replay and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    draft_token_s, target_token_s = fitted(*read_questions(options.results[0]))
    paces = paces_of(draft_token_s, target_token_s)
    sys.stdout.write(
        f"fitted: {1 / draft_token_s:.0f} tokens/s of a draft's request, {1 / target_token_s:.0f} of a target's\n"
    )
    for folder in options.results:
        scripts, seconds = read_questions(folder)
        questions = replay(scripts, paces)
        figures, simulated = AttsFigures.of(questions), times(questions)
        barrier = AttsFigures.of(replay(scripts, paces, is_barrier=True))
        lines = [
            f"{folder.name}: {figures.num_samples} samples, {figures.turns:.2f} turns, taken over "
            f"{figures.taken_over:.4f}; survivors {' '.join(map(str, figures.survivors))}",
            *table(seconds, simulated),
            f"correlation of samples: {np.corrcoef(np.log(seconds), np.log(simulated))[0, 1]:.3f}",
            f"with a barrier at the same budget: {barrier.total_s:.0f} s, without {figures.total_s:.0f} s, "
            f"{barrier.total_s / figures.total_s:.2f} times; per sample {barrier.sample_s.mean:.1f} and "
            f"{figures.sample_s.mean:.1f} s; taken over {barrier.taken_over:.4f}",
            "",
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
