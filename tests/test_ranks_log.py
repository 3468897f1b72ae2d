"""The log on ranks agrees with the recorded profile."""

from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.report import Report
from swiftspec.cli.profile import checked_steps
from swiftspec.files.document import file_sha256
from swiftspec.profiler.tensor_parallel import GLOO
from swiftspec.timing.timeline import Phase

pytestmark = pytest.mark.extra("engine")

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/log/2026-11-22-ranks.md").read_text(encoding="utf-8")
FOLDER = ROOT / "swiftspec/profiles/demo-zen4-2-ranks"
CONTEXT = 256
ROWS = (1, 8)


def table(name: str) -> list[list[str]]:
    """Cells of the log's table after a mark."""
    _, _, after = PAGE.partition(f"<!-- {name} -->")
    return [line.strip("| ").split(" | ") for line in after.partition("<!--")[0].strip().splitlines()[2:]]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def error(relative: float) -> str:
    return f"{relative:+.1%}".replace("%", " %")


def forward_rows(profile: Profile) -> list[list[str]]:
    """Forwards of two ranks, composed and measured whole, with those of a process with two threads."""
    rows = []
    for step, check in checked_steps(profile):
        if step.phase in (Phase.VERIFY, Phase.EXPAND) and step.context == CONTEXT and step.rows in ROWS:
            threads = profile.step(step.key._replace(ranks=1))
            parts = {part.name: part.seconds for part in step.parts}
            rows.append(
                [
                    f"{step.role}, {step.rows} row{'s' * (step.rows > 1)}",
                    milliseconds(threads.median_s),
                    *(milliseconds(parts[name]) for name in ("shard", "all_reduce", "gather", "note")),
                    milliseconds(step.latency.median_s),
                    milliseconds(check.latency.median_s),
                    error(step.latency.median_s / check.latency.median_s - 1),
                ]
            )
    return rows


def collective_rows(profile: Profile) -> list[list[str]]:
    return [
        [collective.role, *(f"{collective.seconds[name] * 1e3:.2f}" for name in (GLOO, f"{GLOO}, in a row"))]
        for collective in profile.collectives
    ]


def policy_rows(report: Report) -> list[list[str]]:
    return [
        [
            policy.policy,
            milliseconds(policy.predicted.round_s.median),
            milliseconds(policy.measured.round_s.median),
            error(policy.error.round_s.median),
            f"{policy.predicted.tokens_per_s:.1f}",
            f"{policy.measured.tokens_per_s:.1f}",
            error(policy.error.tokens_per_s),
            error(policy.retimed_error) if policy.retimed_error is not None else "",
        ]
        for policy in report.policies
    ]


def test_tables_are_what_was_recorded() -> None:
    assert table("forwards") == forward_rows(Profile.load(FOLDER / "profile.json"))
    assert table("collectives") == collective_rows(Profile.load(FOLDER / "profile.json"))
    assert table("policies") == policy_rows(Report.load(FOLDER / "report.json"))


def test_rounds_of_two_ranks_were_predicted_within_15_percent() -> None:
    report = Report.load(FOLDER / "report.json")
    assert {policy.policy for policy in report.policies} >= {"autoregressive", "serial_chain", "serial_tree"}
    assert all(" 2x1" in policy.candidate for policy in report.policies)
    assert max(abs(policy.error.round_s.median) for policy in report.policies) < 0.15


def test_the_recorded_plan_rests_on_the_recorded_files() -> None:
    plan = Plan.load(FOLDER / "plan.json")
    for basis in (plan.profile, plan.trace):
        assert file_sha256(FOLDER / basis.path) == basis.sha256
    assert Report.load(FOLDER / "report.json").plan_sha256 == file_sha256(FOLDER / "plan.json")
