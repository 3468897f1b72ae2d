"""Kinds of drafts on the bundled target: what each predicts, and how much the best one gains.

On a quiet machine; a quarter of an hour. The target is inflated until its forward costs 8 to 25 of the draft's. For
each bundled draft (serial, parallel, head, block): profile, trace, plan, and measure the policies that this kind has,
on untraced prompts. Then the best plans of all drafts serve the same prompts in turn, since the machine's speed changes
by more than they may differ. The files stay in WORK, and a stage whose file exists is not repeated. Criteria:

- every policy's re-timed tokens/s within 10 %;
- the best plan of all kinds at least 1.15 times the best one that has a serial draft and does not search texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated

import swiftspec
from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.report import PolicyReport, Report
from swiftspec.cli import console
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.spec import model_directory
from swiftspec.policies import POLICIES, DraftKind
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import milliseconds, signed_percent, speed
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from tools.checks.criterion import Criterion, at_least, at_most
from tools.checks.pairs import Pair, Texts, measured

_DRAFTS = {"serial": "draft", "parallel": "parallel_draft", "head": "head", "block": "block"}
_MOST_ERROR_PERCENT, _LEAST_GAIN = 10, 1.15
_POSITIONS = 6
_BASE = "serial alone"


def check(
    work: Annotated[Path, "folder for the files, kept between runs"],
    inflate: Annotated[str, "of the target"] = "layers=48",
    limit: Annotated[int, "measured prompts"] = 12,
    turns: Annotated[int, "of the best plans"] = 5,
) -> Iterator[Criterion]:
    """Measure every draft, then the best plans in turn."""
    prompts = model_directory("demo/prompts")
    texts = Texts(traced=prompts / "trace.jsonl", measured=prompts / "validate.jsonl", num_measured=limit, repeats=2)
    plans = {}
    for kind, name in _DRAFTS.items():
        pair = Pair(target="demo/target", draft=f"demo/{name}", inflate=inflate, dtype="float32")
        report, plans[kind] = measured(work / kind, pair, texts, policies=_policies_of(pair.draft))
        yield _errors(kind, report, Profile.load(work / kind / "profile.json"))
    yield _gain(work, plans, texts, num_turns=turns)


def _policies_of(draft: str) -> list[str]:
    """Policies that are measured with a draft: all of the serial one's, and those that need another kind."""
    kind = draft_facts(draft).kind
    own = [name for name, cls in POLICIES.items() if kind in cls.drafts]
    others = [name for name in own if DraftKind.SERIAL not in POLICIES[name].drafts]
    return own if kind is DraftKind.SERIAL else ["autoregressive", *others]


def _errors(kind: str, report: Report, profile: Profile) -> Criterion:
    """Print a draft's policies, predicted and measured."""
    verify_s, draft_s = (
        profile.step(StepKey(role, phase, degree=2, rows=1, context=128)).median_s
        for role, phase in ((Role.TARGET, Phase.VERIFY), (Role.DRAFT, Phase.EXPAND))
    )
    title = f"{kind}: one row of the target {milliseconds(verify_s)} ms, of the draft {milliseconds(draft_s)} ms"
    columns = ("policy", "tokens/s", "as planned", "re-timed", "tokens/round", "as planned", "acceptance by position")
    rows = [_row(each) for each in report.policies]
    console.table(f"{title}, ratio {verify_s / draft_s:.1f}", columns, rows)
    errors = [
        (each.policy, 100 * abs(each.retimed_error)) for each in report.policies if each.retimed_error is not None
    ]
    return at_most(f"{kind}: re-timed error of tokens/s", errors, _MOST_ERROR_PERCENT, "%")


def _row(policy: PolicyReport) -> tuple[str, ...]:
    predicted, found = policy.predicted_acceptance, policy.measured_metrics.acceptance
    pairs = zip(predicted[:_POSITIONS], found[:_POSITIONS], strict=False)
    return (
        policy.policy,
        speed(policy.measured.tokens_per_s),
        signed_percent(policy.error.tokens_per_s),
        "" if policy.retimed_error is None else signed_percent(policy.retimed_error),
        f"{policy.measured.tokens_per_round:.2f}",
        signed_percent(policy.error.tokens_per_round),
        " ".join(f"{100 * one:.0f}/{100 * other:.0f}" for one, other in pairs),
    )


def _gain(work: Path, plans: Mapping[str, Plan], texts: Texts, *, num_turns: int) -> Criterion:
    """Measure the best plan of each draft in turn."""
    chosen = {kind: plan.chosen for kind, plan in plans.items()} | {_BASE: _best_serial(plans["serial"])}
    paths = {kind: work / ("serial" if kind == _BASE else kind) / "plan.json" for kind in chosen}
    speeds: dict[str, list[float]] = {kind: [] for kind in chosen}
    for _ in range(num_turns):
        for kind, path in paths.items():
            report = swiftspec.validate(path, texts.measured, policies=[chosen[kind].policy], limit=texts.num_measured)
            speeds[kind].append(report.policies[0].measured.tokens_per_s)
    ratios = {
        kind: median(own / base for own, base in zip(each, speeds[_BASE], strict=True)) for kind, each in speeds.items()
    }
    rows = [
        (kind, chosen[kind].describe(), speed(median(each)), f"{ratios[kind]:.2f}") for kind, each in speeds.items()
    ]
    console.table("Best plans, in turn", ("draft", "plan", "tokens/s", f"over {_BASE}"), rows)
    best = max(ratios, key=ratios.__getitem__)
    return at_least(f"best plan of all kinds ({best}) over the best of {_BASE}", ratios[best], _LEAST_GAIN)


def _best_serial(plan: Plan) -> Candidate:
    """The best candidate with a serial draft alone, by its predicted speed."""
    drafting = [each for each in plan.candidates.values() if POLICIES[each.policy].drafts and not _searches(each)]
    return max(drafting, key=lambda each: each.prediction.metrics.figures.tokens_per_s)


def _searches(candidate: Candidate) -> bool:
    return candidate.policy.startswith(("prompt_lookup", "suffix"))
