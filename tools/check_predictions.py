"""Check predictions on two pairs: `python -m tools.check_predictions --work DIR`, on a quiet machine.

Takes up to an hour. For the bundled pair and for that of `tools/second_pair.py`: profile, trace, plan, and measure 13
policies on 12 untraced prompts, twice. The files stay in DIR, and a stage whose file exists is not repeated;
`--only-table` prints the tables of an earlier run. Exit code 1 if a criterion is missed:

- re-traced: every policy's tokens/s within 8 %, their median within 4 %;
- asynchronous policies' error of tokens per round, re-traced, at most 6 points from that of the serial ones.

"As planned" is the prediction made beforehand; "re-timed" repeats it with the forward latencies during the measurement;
"re-traced" also replaces the traced texts by the measured ones.

By default the traced and the measured prompts are from different sources, whose difference shows in the error of a
re-timed prediction. With `--mixed` the prompts of both are shuffled: `--prompts` of them are measured and the rest
traced. Then they differ only by chance, and the first criterion is applied to re-timed predictions as well. With
`--folds N` even chance is excluded: all prompts are shuffled and divided into N parts, each is measured once and
predicted from the others, and errors are means over the parts.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from swiftspec.cli import console
from swiftspec.models.spec import model_directory
from swiftspec.policies import POLICIES, Layout
from swiftspec.reports.formatting import percent, signed_percent

MOST_ERROR, MOST_MEDIAN, MOST_APART = 0.08, 0.04, 0.06
NEW_TOKENS = 96
COLUMNS = (
    *("policy", "tokens/s", "as planned", "re-timed", "re-traced"),
    *("tokens/round", "as planned", "re-traced", "drafts/round", "as planned"),
)
INFLATIONS = {"bundled": "layers=48", "second": "layers=24"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the files, kept between runs")
    parser.add_argument(
        "--second", type=Path, help="the second pair's folder, by default DIR/second-pair; trained there"
    )
    parser.add_argument("--pairs", default="bundled,second", help="which pairs (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=12, help="number of measured prompts (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=2, help="repetitions of each (default: %(default)s)")
    parser.add_argument("--mixed", action="store_true", help="measure and trace prompts of the same sources")
    parser.add_argument("--folds", type=int, default=0, help="measure all prompts, each part predicted from the others")
    parser.add_argument("--only-table", action="store_true", help="print the tables of an earlier run, run nothing")
    args = parser.parse_args()
    console.begin()
    work: Path = args.work
    second: Path = args.second or work / "second-pair"
    held = True
    for name in args.pairs.split(","):
        folders = [work / name / f"fold-{fold}" for fold in range(args.folds)] or [work / name]
        for fold, folder in enumerate(folders):
            folder.mkdir(parents=True, exist_ok=True)
            if not args.only_table:
                measure(name, folder, second, args, fold=fold)
        measured = [
            [json.loads((folder / file).read_text()) for file in ("report.json", "plan.json")] for folder in folders
        ]
        held &= show(name, measured, bases=("retimed", "retraced") if args.mixed or args.folds else ("retraced",))
    return 0 if held else 1


def measure(name: str, folder: Path, second: Path, args: argparse.Namespace, *, fold: int) -> None:
    """Profile, trace, plan and validate; existing files are kept. A pair's folds are timed anew, on new processes."""
    if name == "second" and not (second / "draft" / "config.json").exists():
        run([sys.executable, "-m", "tools.second_pair", "--work", str(second)])
    home = model_directory("demo/prompts").parent if name == "bundled" else second
    target, draft = (f"demo/{role}" if name == "bundled" else str(second / role) for role in ("target", "draft"))
    models = ["--target", target, "--draft", draft]
    inflated = [*models, "--inflate", INFLATIONS[name]]
    profile, trace, compared = (folder / file for file in ("profile.json", "trace.npz", "report.json"))
    if not profile.exists():
        swiftspec("profile", *inflated, "--device", "cpu", "--devices", "2", "--out", str(profile))
    models_profiled = json.loads(profile.read_text())
    dtype = ",".join(models_profiled[role]["dtype"] for role in ("target", "draft"))
    traced, measured = (home / "prompts" / file for file in ("trace.jsonl", "validate.jsonl"))
    num_measured = args.prompts
    if args.folds:
        traced, measured, num_measured = folded(traced, measured, folder, fold=fold, num_folds=args.folds)
    elif args.mixed:
        traced, measured = mixed(traced, measured, folder, num_measured=num_measured)
    if not trace.exists():
        texts = ["--prompts", str(traced), "--max-new-tokens", str(NEW_TOKENS)]
        swiftspec("trace", *models, "--dtype", dtype, *texts, "--out", str(trace))
    if not compared.exists():
        basis = ["--profile", str(profile), "--trace", str(trace), "--devices", "2"]
        plan = folder / "plan.json"
        swiftspec("plan", *inflated, *basis, "--out", str(plan))
        texts = ["--prompts", str(measured), "--num-prompts", str(num_measured), "--repeats", str(args.repeats)]
        swiftspec("validate", "--plan", str(plan), *texts, "--json", str(compared))


def mixed(traced: Path, measured: Path, folder: Path, *, num_measured: int) -> tuple[Path, Path]:
    """The prompts of both files, shuffled with a fixed seed and divided anew: those to trace, and those to measure."""
    lines = shuffled(traced, measured)
    return divided(lines[num_measured:], lines[:num_measured], folder)


def folded(traced: Path, measured: Path, folder: Path, *, fold: int, num_folds: int) -> tuple[Path, Path, int]:
    """As `mixed`, with every `num_folds`-th prompt to measure, beginning with prompt `fold`; and their number."""
    lines = shuffled(traced, measured)
    part = lines[fold::num_folds]
    others = [line for number, line in enumerate(lines) if number % num_folds != fold]
    return *divided(others, part, folder), len(part)


def shuffled(*files: Path) -> list[str]:
    """All prompts of some files, in an order that is always the same."""
    lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
    random.Random(0).shuffle(lines)
    return lines


def divided(to_trace: Sequence[str], to_measure: Sequence[str], folder: Path) -> tuple[Path, Path]:
    """Write both parts; the files."""
    files = folder / "trace.jsonl", folder / "validate.jsonl"
    for file, part in zip(files, (to_trace, to_measure), strict=True):
        file.write_text("\n".join(part) + "\n")
    return files


def swiftspec(*arguments: str) -> None:
    run([sys.executable, "-m", "swiftspec", *arguments])


def run(command: list[str]) -> None:
    console.say(f"$ {' '.join(command)}")
    subprocess.run(command, check=True)


def show(name: str, measured: Sequence[Sequence[Mapping[str, Any]]], *, bases: Sequence[str]) -> bool:
    """Print a pair's table, and return whether the criteria hold. measured: a report and its plan for each fold."""
    reports = [report for report, _ in measured]
    policies = [
        mean_of([_with_plan(report, plan, policy) for report, plan in measured]) for policy in _names(reports[0])
    ]
    num_prompts, repeats = sum(report["num_prompts"] for report in reports), reports[0]["policies"][0]["repeats"]
    title = f"{name}: {num_prompts} prompts, {len(repeats)} {'repetition' if len(repeats) == 1 else 'repetitions'}"
    console.table(title, COLUMNS, [_row(policy) for policy in policies])
    verdicts = list(criteria(policies, bases))
    for held, text in verdicts:
        console.say(f"{'held' if held else 'missed'}: {text}")
    return all(held for held, _ in verdicts)


def _names(report: Mapping[str, Any]) -> list[str]:
    return [policy["policy"] for policy in report["policies"]]


def _with_plan(report: Mapping[str, Any], plan: Mapping[str, Any], policy: str) -> Mapping[str, Any]:
    """A policy's part of a report, with the draft forwards per round that the plan predicted."""
    (part,) = (each for each in report["policies"] if each["policy"] == policy)
    (candidate,) = (each for each in (plan["chosen"], *plan["alternatives"]) if each["policy"] == policy)
    return {**part, "planned_drafts_per_round": candidate["prediction"]["metrics"]["drafts_per_round"]}


def mean_of(folds: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """A policy's figures as means over folds; predicted ones such that their errors are the means of the errors."""
    if len(folds) == 1:
        return folds[0]
    figures = ("tokens_per_s", "tokens_per_round")
    measured = {figure: mean(fold["measured"][figure] for fold in folds) for figure in figures}
    predictions = {
        basis: {
            figure: measured[figure] * (1 + mean(error(fold[basis], fold["measured"], figure) for fold in folds))
            for figure in figures
        }
        for basis in ("predicted", "retimed", "retraced")
    }
    drafts = mean(fold["measured_metrics"]["drafts_per_round"] for fold in folds)
    return {
        "policy": folds[0]["policy"],
        "measured": measured,
        "measured_metrics": {"drafts_per_round": drafts},
        "planned_drafts_per_round": mean(fold["planned_drafts_per_round"] for fold in folds),
    } | predictions


def _row(policy: Mapping[str, Any]) -> tuple[str, ...]:
    measured = policy["measured"]
    return (
        policy["policy"],
        f"{measured['tokens_per_s']:.1f}",
        *(signed(policy[name], measured, "tokens_per_s") for name in ("predicted", "retimed", "retraced")),
        f"{measured['tokens_per_round']:.2f}",
        *(signed(policy[name], measured, "tokens_per_round") for name in ("predicted", "retraced")),
        f"{policy['measured_metrics']['drafts_per_round']:.2f}",
        f"{policy['planned_drafts_per_round']:.2f}",
    )


def criteria(policies: Sequence[Mapping[str, Any]], bases: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Each criterion: whether it holds, and its text; `bases` are the predictions whose tokens/s are judged."""
    for basis in bases:
        errors = {p["policy"]: abs(error(p[basis], p["measured"], "tokens_per_s")) for p in policies}
        worst = max(errors, key=lambda policy: errors[policy])
        yield errors[worst] <= MOST_ERROR, f"{basis} error of tokens/s at most {percent(errors[worst])} ({worst})"
        middle = median(errors.values())
        yield middle <= MOST_MEDIAN, f"in the median {percent(middle)}"
    lengths: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for policy in policies:
        if policy["policy"] != "autoregressive":
            is_asynchronous = POLICIES[policy["policy"]].layout is Layout.DISAGGREGATED
            lengths[is_asynchronous][policy["policy"]] = error(
                policy["retraced"], policy["measured"], "tokens_per_round"
            )
    serial = median(lengths[False].values())
    apart = {policy: abs(value - serial) for policy, value in lengths[True].items()}
    farthest = max(apart, key=lambda policy: apart[policy])
    text = f"asynchronous tokens per round at most {percent(apart[farthest])} from serial ones' error ({farthest})"
    yield apart[farthest] <= MOST_APART, text


def error(predicted: Mapping[str, float], measured: Mapping[str, float], figure: str) -> float:
    return predicted[figure] / measured[figure] - 1


def signed(predicted: Mapping[str, float] | None, measured: Mapping[str, float], figure: str) -> str:
    return "" if predicted is None else signed_percent(error(predicted, measured, figure))


if __name__ == "__main__":
    sys.exit(main())
