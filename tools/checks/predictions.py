"""Predicted speeds of all policies against measured ones, on two pairs.

On a quiet machine; up to an hour. For the bundled pair and for that of `tools/second_pair.py`, which is trained first:
profile, trace, plan, and measure every policy on 12 untraced prompts, twice. The files stay in WORK, and a stage whose
file exists is not repeated. Criteria:

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

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Literal, get_args

from swiftspec.artifacts.metrics import Figures
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.report import Report, relative_error
from swiftspec.cli import console
from swiftspec.models.spec import model_directory
from swiftspec.policies import POLICIES, Layout
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.reports.formatting import signed_percent
from tools.checks.criterion import Criterion, at_most
from tools.checks.pairs import Pair, Texts, measured

MOST_ERROR, MOST_MEDIAN, _MOST_APART = 0.08, 0.04, 0.06
_COLUMNS = (
    *("policy", "tokens/s", "as planned", "re-timed", "re-traced"),
    *("tokens/round", "as planned", "re-traced", "drafts/round", "as planned"),
)
Basis = Literal["planned", "retimed", "retraced"]
_BASES: tuple[Basis, ...] = get_args(Basis)


def check(
    work: Annotated[Path, "folder for the files, kept between runs"],
    pairs: tuple[Literal["bundled", "second"], ...] = ("bundled", "second"),
    prompts: Annotated[int, "number of measured ones"] = 12,
    repeats: Annotated[int, "of each prompt"] = 2,
    mixed: Annotated[bool, "measure and trace prompts of the same sources"] = False,
    folds: Annotated[int, "measure all prompts, each part predicted from the others"] = 0,
) -> Iterator[Criterion]:
    """Measure both pairs, and judge the errors."""
    bases: tuple[Basis, ...] = ("retimed", "retraced") if mixed or folds else ("retraced",)
    for name in pairs:
        pair, texts = _bundled() if name == "bundled" else _second(work / "second-pair")
        found = []
        for fold in range(max(1, folds)):
            folder = work / name / f"fold-{fold}" if folds else work / name
            if folds or mixed:
                parts = (fold, folds) if folds else None
                own = divided(texts, folder, num_measured=prompts, fold=parts, repeats=repeats)
            else:
                own = Texts(traced=texts[0], measured=texts[1], num_measured=prompts, repeats=repeats)
            found.append(measured(folder, pair, own))
        policies = [Errors.of(each.policy, found) for each in found[0][0].policies]
        num_prompts = sum(report.num_prompts for report, _ in found)
        _show(f"{name}: {num_prompts} prompts, {repeats} times", policies)
        yield from criteria(name, policies, bases)


def _bundled() -> tuple[Pair, tuple[Path, Path]]:
    return Pair(target="demo/target", draft="demo/draft", inflate="layers=48"), _prompts(
        model_directory("demo/prompts")
    )


def _second(folder: Path) -> tuple[Pair, tuple[Path, Path]]:
    if not (folder / "draft" / "config.json").exists():
        from tools.second_pair import main as train  # imports the library that trains

        train(["--work", str(folder)])
    pair = Pair(target=str(folder / "target"), draft=str(folder / "draft"), inflate="layers=24")
    return pair, _prompts(folder / "prompts")


def _prompts(folder: Path) -> tuple[Path, Path]:
    return folder / "trace.jsonl", folder / "validate.jsonl"


def divided(
    files: Sequence[Path], folder: Path, *, num_measured: int, fold: tuple[int, int] | None, repeats: int
) -> Texts:
    """The prompts of all files, shuffled with a fixed seed and divided anew: those to trace, and those to measure.

    fold: (n, N) measures every N-th prompt from the n-th on; without it the first `num_measured` are measured.
    """
    lines = [line for file in files for line in file.read_text().splitlines() if line.strip()]
    random.Random(0).shuffle(lines)
    chosen = set(range(num_measured) if fold is None else range(fold[0], len(lines), fold[1]))
    folder.mkdir(parents=True, exist_ok=True)
    traced, measured = _prompts(folder)
    for file, is_measured in ((traced, False), (measured, True)):
        part = [line for number, line in enumerate(lines) if (number in chosen) is is_measured]
        file.write_text("\n".join(part) + "\n")
    return Texts(traced=traced, measured=measured, num_measured=len(chosen), repeats=repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """A policy's measured figures, and the relative errors of its predictions that were made; means over folds."""

    policy: str
    tokens_per_s: float
    tokens_per_round: float
    drafts_per_round: float
    planned_drafts_per_round: float
    speed: Mapping[Basis, float]
    length: Mapping[Basis, float]

    @classmethod
    def of(cls, policy: str, found: Sequence[tuple[Report, Plan]]) -> Errors:
        """From the report of each fold, and its plan."""
        folds = [next(each for each in report.policies if each.policy == policy) for report, _ in found]
        planned = [plan.candidates[policy].prediction.metrics.drafts_per_round for _, plan in found]
        errors: dict[Basis, list[Figures]] = {basis: [] for basis in _BASES}
        for fold in folds:
            for basis, predicted in zip(_BASES, (fold.predicted, fold.retimed, fold.retraced), strict=True):
                if predicted is not None:
                    errors[basis].append(relative_error(predicted, fold.measured))
        known = {basis: each for basis, each in errors.items() if each}
        return cls(
            policy=policy,
            tokens_per_s=fmean(fold.measured.tokens_per_s for fold in folds),
            tokens_per_round=fmean(fold.measured.tokens_per_round for fold in folds),
            drafts_per_round=fmean(fold.measured_metrics.drafts_per_round or 0.0 for fold in folds),
            planned_drafts_per_round=fmean(number or 0.0 for number in planned),
            speed={basis: fmean(error.tokens_per_s for error in each) for basis, each in known.items()},
            length={basis: fmean(error.tokens_per_round for error in each) for basis, each in known.items()},
        )


def _show(title: str, policies: Sequence[Errors]) -> None:
    rows = [
        (
            each.policy,
            f"{each.tokens_per_s:.1f}",
            *(_signed(each.speed.get(basis)) for basis in _BASES),
            f"{each.tokens_per_round:.2f}",
            *(_signed(each.length.get(basis)) for basis in ("planned", "retraced")),
            f"{each.drafts_per_round:.2f}",
            f"{each.planned_drafts_per_round:.2f}",
        )
        for each in policies
    ]
    console.table(title, _COLUMNS, rows)


def _signed(error: float | None) -> str:
    return "" if error is None else signed_percent(error)


def criteria(name: str, policies: Sequence[Errors], bases: Sequence[Basis]) -> Iterator[Criterion]:
    """Criteria of a pair; `bases` are the predictions whose tokens/s are judged."""
    for basis in bases:
        errors = [(each.policy, 100 * abs(each.speed[basis])) for each in policies if basis in each.speed]
        yield at_most(f"{name}: {basis} error of tokens/s", errors, 100 * MOST_ERROR, "%")
        middle = [("", median(error for _, error in errors))] if errors else []
        yield at_most(f"{name}: {basis} error in the median", middle, 100 * MOST_MEDIAN, "%")
    lengths: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for each in policies:
        if each.policy != Autoregressive.name and "retraced" in each.length:
            is_asynchronous = POLICIES[each.policy].layout is Layout.DISAGGREGATED
            lengths[is_asynchronous][each.policy] = each.length["retraced"]
    serial = median(lengths[False].values()) if lengths[False] else math.nan
    apart = [(policy, 100 * abs(error - serial)) for policy, error in lengths[True].items()]
    yield at_most(f"{name}: asynchronous tokens per round, from serial ones' error", apart, 100 * _MOST_APART, "%")
