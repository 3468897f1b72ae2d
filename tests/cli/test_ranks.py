"""Two ranks from profile to report, on real processes: composed forwards, a plan of divided groups, its own output."""

import json
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.report import Report
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli.app import main
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from tests.cli.conftest import Stage, brief_profiles, make_trace
from tests.engine.conftest import two_cores

pytestmark = [pytest.mark.extra("engine"), pytest.mark.alone, two_cores]
POLICIES = {"autoregressive", "serial_chain"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Without a profile and a plan for undivided groups."""
    made = Stage.within(tmp_path_factory.mktemp("stage"))
    make_trace(made)
    return made


@pytest.fixture(scope="module")
def divided(stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile that knows of two ranks, and a plan of nothing else."""
    folder = tmp_path_factory.mktemp("divided")
    profile = ["profile", *stage.pair(), "--devices", "2", "--ranks", "2", "--dtype", "fp32"]
    with brief_profiles(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("swiftspec.profiler.collective_costs.SAMPLES", 4)
        assert main([*profile, "--out", str(folder / "profile.json")]) == 0
    files = ["--profile", str(folder / "profile.json"), "--trace", str(stage.trace), "--out", str(folder / "plan.json")]
    wanted = ["--devices", "2", "--set", "ranks=2", "--policy", "serial_chain", "--jobs", "1"]
    assert main(["plan", *stage.pair(), *files, *wanted]) == 0
    return folder


def test_forwards_of_two_ranks_are_composed_and_checked_against_whole_ones(divided: Path) -> None:
    profile = Profile.load(divided / "profile.json")
    composed = [step for step in profile.steps if step.ranks == 2]
    assert {(step.degree, step.provenance) for step in composed} == {(2, Provenance.COMPOSED)}
    assert {part.name for part in composed[0].parts} == {"shard", "all_reduce", "gather", "note"}
    known, checked = ({(of.table, of.rows, of.context) for of in steps} for steps in (composed, profile.checks))
    assert {point for point in checked if point[0].role is Role.TARGET} <= known
    # A draft that was held up before its only forward of a kind looks cold, and that point is missing.
    assert {table.role for table, _, _ in checked & known} == set(Role)
    assert {(c.role, c.ranks) for c in profile.collectives} == {(Role.TARGET, 2), (Role.DRAFT, 2)}


def test_a_plan_of_two_ranks_runs_on_two_processes_and_says_what_was_traced(
    stage: Stage, divided: Path, tmp_path: Path
) -> None:
    plan = Plan.load(divided / "plan.json")
    assert {policy: candidate.split for policy, candidate in plan.candidates.items()} == dict.fromkeys(POLICIES, "2x1")
    for policy in POLICIES:
        files = ["--plan", str(divided / "plan.json"), "--prompts", str(stage.prompts)]
        assert main(["run", *files, "--policy", policy, "--json", str(tmp_path / "run.json")]) == 0
        result = json.loads((tmp_path / "run.json").read_text())
        assert [(process["rank"], len(process["cores"])) for process in result["processes"]] == [(0, 1), (1, 1)]
        traced = AcceptanceTrace.load(stage.trace).prompts
        outputs = [tuple(output["output_token_ids"]) for output in result["prompts"]]
        assert outputs == [tuple(prompt.target_tokens.tolist()) for prompt in traced]


def test_a_plan_of_two_ranks_is_validated_and_re_timed_as_such(stage: Stage, divided: Path, tmp_path: Path) -> None:
    files = ["--plan", str(divided / "plan.json"), "--prompts", str(stage.prompts), "--json", str(tmp_path / "r.json")]
    assert main(["validate", *files, "--policies", ",".join(POLICIES), "--num-prompts", "1", "--repeats", "1"]) == 0
    report = Report.load(tmp_path / "r.json")
    assert {drift.ranks for drift in report.drift} == {2}
    assert all(policy.identical_output and policy.retimed for policy in report.policies)
