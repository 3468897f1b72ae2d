"""Compare kinds of drafts on the bundled target: `python -m tools.check_drafts --work DIR`, on a quiet machine.

Takes a quarter of an hour. The target is inflated until its forward costs 8 to 25 of the draft's. For each bundled
draft (serial, parallel, head, block): profile, trace, plan, and measure the policies that this kind has, on untraced
prompts. Then the best plans of all drafts serve the same prompts in turn, since the machine's speed changes by more
than they may differ. The files stay in DIR, and a stage whose file exists is not repeated. Exit code 1 if a criterion
is missed:

- every policy's re-timed tokens/s within 10 %;
- the best plan of all kinds at least 1.15 times the best one that has a serial draft and does not search texts.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import swiftspec
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.report import PolicyReport
from swiftspec.cli import console
from swiftspec.cli.columns import milliseconds, signed_percent, speed
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.spec import model_directory
from swiftspec.policies import POLICIES, DraftKind
from swiftspec.policies.effects import Role
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from tools.check_predictions import swiftspec as run_swiftspec

DRAFTS = {"serial": "draft", "parallel": "parallel_draft", "head": "head", "block": "block"}
INFLATION = "layers=48"
NEW_TOKENS = 96
MOST_ERROR, LEAST_GAIN = 0.10, 1.15
POSITIONS = 6
BASE = "serial alone"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the files, kept between runs")
    parser.add_argument("--inflate", default=INFLATION, help="of the target (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=12, help="measured prompts (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="of the best plans (default: %(default)s)")
    args = parser.parse_args()
    console.begin()
    for kind in DRAFTS:
        prepare(kind, args)
    held = [show(kind, args.work / kind) for kind in DRAFTS]
    return 0 if all([*held, gain(args)]) else 1


def prepare(kind: str, args: argparse.Namespace) -> None:
    """Profile, trace, plan and measure one draft; existing files are kept."""
    folder: Path = args.work / kind
    folder.mkdir(parents=True, exist_ok=True)
    models = ["--target", "demo/target", "--draft", f"demo/{DRAFTS[kind]}"]
    profile, trace, plan = (folder / file for file in ("profile.json", "trace.npz", "plan.json"))
    prompts = model_directory("demo/prompts")
    if not profile.exists():
        inflated = ["--inflate", args.inflate, "--dtype", "float32"]
        run_swiftspec("profile", *models, *inflated, "--devices", "2", "--out", str(profile))
    if not trace.exists():
        texts = ["--prompts", str(prompts / "trace.jsonl"), "--max-new-tokens", str(NEW_TOKENS)]
        run_swiftspec("trace", *models, "--dtype", "float32", *texts, "--out", str(trace))
    if not (folder / "report.json").exists():
        basis = ["--profile", str(profile), "--trace", str(trace), "--devices", "2", "--inflate", args.inflate]
        run_swiftspec("plan", *models, *basis, "--out", str(plan))
        texts = ["--prompts", str(prompts / "validate.jsonl"), "--num-prompts", str(args.limit), "--repeats", "2"]
        chosen = ["--policies", ",".join(policies_of(kind)), "--json", str(folder / "report.json")]
        run_swiftspec("validate", "--plan", str(plan), *texts, *chosen)


def policies_of(kind: str) -> list[str]:
    """Policies that are measured with a draft: all of the serial one's, and those that need another kind."""
    facts = draft_facts(f"demo/{DRAFTS[kind]}")
    own = [name for name, cls in POLICIES.items() if facts.kind in cls.drafts]
    others = [name for name in own if DraftKind.SERIAL not in POLICIES[name].drafts]
    return own if facts.kind is DraftKind.SERIAL else ["autoregressive", *others]


def show(kind: str, folder: Path) -> bool:
    """Print a draft's policies, predicted and measured; whether the predictions hold."""
    compared = json.loads((folder / "report.json").read_text())["policies"]
    known = PolicyReport.model_fields
    policies = [PolicyReport(**{name: each[name] for name in known if name in each}) for each in compared]
    profile = swiftspec.Profile.load(folder / "profile.json")
    verify_s, draft_s = (
        profile.step(StepKey(role, phase, degree=2, rows=1, context=128)).median_s
        for role, phase in ((Role.TARGET, Phase.VERIFY), (Role.DRAFT, Phase.EXPAND))
    )
    title = f"{kind}: one row of the target {milliseconds(verify_s)} ms, of the draft {milliseconds(draft_s)} ms"
    columns = ("policy", "tokens/s", "as planned", "re-timed", "tokens/round", "as planned", "acceptance by position")
    console.table(f"{title}, ratio {verify_s / draft_s:.1f}", columns, [_row(each) for each in policies])
    errors = {each.policy: abs(each.retimed_error or 0.0) for each in policies}
    worst = max(errors, key=errors.__getitem__)
    return _said(
        f"{kind}: re-timed error of tokens/s at most {errors[worst]:.1%} ({worst})", errors[worst] <= MOST_ERROR
    )


def _row(policy: PolicyReport) -> tuple[str, ...]:
    predicted, measured = policy.predicted_acceptance, policy.measured_metrics.acceptance
    pairs = zip(predicted[:POSITIONS], measured[:POSITIONS], strict=False)
    return (
        policy.policy,
        speed(policy.measured.tokens_per_s),
        signed_percent(policy.error.tokens_per_s),
        "" if policy.retimed_error is None else signed_percent(policy.retimed_error),
        f"{policy.measured.tokens_per_round:.2f}",
        signed_percent(policy.error.tokens_per_round),
        " ".join(f"{100 * one:.0f}/{100 * other:.0f}" for one, other in pairs),
    )


def gain(args: argparse.Namespace) -> bool:
    """Measure the best plan of each draft in turn; whether another kind is as much better as wanted."""
    plans = {kind: args.work / kind / "plan.json" for kind in DRAFTS}
    chosen = {kind: swiftspec.Plan.load(path).chosen for kind, path in plans.items()}
    plans[BASE], chosen[BASE] = plans["serial"], _best_serial(swiftspec.Plan.load(plans["serial"]))
    prompts = model_directory("demo/prompts") / "validate.jsonl"
    speeds: dict[str, list[float]] = {kind: [] for kind in plans}
    for _ in range(args.turns):
        for kind, path in plans.items():
            report = swiftspec.validate(path, prompts, policies=[chosen[kind].policy], limit=args.limit)
            speeds[kind].append(report.policies[0].measured.tokens_per_s)
    ratios = {
        kind: median(speed_ / base for speed_, base in zip(each, speeds[BASE], strict=True))
        for kind, each in speeds.items()
    }
    console.table("Best plans, in turn", ("draft", "plan", "tokens/s", f"over {BASE}"), _rows(chosen, speeds, ratios))
    best = max(ratios, key=ratios.__getitem__)
    return _said(
        f"best plan of all kinds ({best}) {ratios[best]:.2f} times the best of {BASE}", ratios[best] >= LEAST_GAIN
    )


def _best_serial(plan: swiftspec.Plan) -> Candidate:
    """The best candidate with a serial draft alone, by its predicted speed."""
    drafting = [each for each in plan.candidates.values() if POLICIES[each.policy].drafts and not _searches(each)]
    return max(drafting, key=lambda each: each.prediction.metrics.figures.tokens_per_s)


def _searches(candidate: Candidate) -> bool:
    return candidate.policy.startswith(("prompt_lookup", "suffix"))


def _rows(
    chosen: Mapping[str, Candidate], speeds: Mapping[str, list[float]], ratios: Mapping[str, float]
) -> list[tuple[str, ...]]:
    return [(kind, chosen[kind].describe(), speed(median(speeds[kind])), f"{ratios[kind]:.2f}") for kind in speeds]


def _said(text: str, held: bool) -> bool:
    console.say(f"{'held' if held else 'missed'}: {text}")
    return held


if __name__ == "__main__":
    sys.exit(main())
