"""The verbs on a real engine: a tiny random pair from profile to report, and what Ctrl-C leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.report import Report
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.app import main
from swiftspec.cli.demo import demo
from swiftspec.cli.verbs.plans import DemoFlags
from swiftspec.files.document import ModelRef, file_sha256
from swiftspec.models.spec import ModelSpec
from swiftspec.models.tokenizer import Tokenizer, read_vocabulary
from swiftspec.timing.timeline import Phase
from tests.cli.conftest import TEXTS, Stage, brief_profiles
from tests.engine.conftest import two_cores
from tests.engine.processes import gone_within, hear_interrupts, is_running

pytestmark = pytest.mark.extra("engine")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def policies_of(stage: Stage) -> list[str]:
    return list(Plan.load(stage.plan).candidates)


def test_profile_is_of_the_pair_and_summed_up_as_json(stage: Stage) -> None:
    profile, result = Profile.load(stage.profile), read(stage.folder / "profile-result.json")
    assert profile.target == ModelRef(model=str(stage.target), dtype="float32")
    assert profile.origin.command.startswith(Path(sys.argv[0]).name)
    assert len(result["steps"]) == len(profile.steps)
    assert result["steps"][0]["median_s"] == profile.steps[0].latency.median_s


def test_trace_holds_every_prompt_and_is_summed_up_as_json(stage: Stage) -> None:
    trace, result = AcceptanceTrace.load(stage.trace), read(stage.folder / "trace-result.json")
    assert [prompt.prompt_id for prompt in trace.prompts] == ["text-0", "text-1", "text-2", "text-3"]
    assert result["num_tokens"] == trace.num_tokens
    assert result["rank_acceptance"] == trace.rank_acceptance(len(result["rank_acceptance"]))


def test_plan_refers_to_its_basis_beside_it(stage: Stage) -> None:
    plan = Plan.load(stage.plan)
    assert (plan.profile.path, plan.profile.sha256) == ("profile.json", file_sha256(stage.profile))
    assert (plan.trace.path, plan.trace.sha256) == ("trace.npz", file_sha256(stage.trace))
    assert read(stage.folder / "plan-result.json")["chosen"]["policy"] == plan.chosen.policy


def test_plan_is_by_default_for_the_devices_of_its_profile(stage: Stage) -> None:
    assert (
        Plan.load(stage.plan).num_devices
        == Profile.load(stage.profile).num_devices
        == min(2, len(os.sched_getaffinity(0)))
    )


def test_plan_is_written_as_a_page_too(stage: Stage) -> None:
    page = (stage.folder / "plan.html").read_text(encoding="utf-8")
    plan = Plan.load(stage.plan)
    assert f"{plan.chosen.policy} {plan.chosen.split}" in page
    assert plan.profile.sha256 in page
    assert "rounds of the plan" in page


def test_plan_elsewhere_refers_to_its_basis_absolutely(stage: Stage, tmp_path: Path) -> None:
    files = ["--profile", str(stage.profile), "--trace", str(stage.trace), "--out", str(tmp_path / "plan.json")]
    assert main(["plan", *stage.pair(), *files, "--devices", "1", "--policy", "serial_chain", "--jobs", "1"]) == 0
    plan = Plan.load(tmp_path / "plan.json")
    assert plan.chosen.policy == "serial_chain"
    assert plan.profile.path == str(stage.profile)
    assert main(["simulate", "--plan", str(tmp_path / "plan.json")]) == 0


@pytest.mark.parametrize(("share", "is_said"), [(0.31, True), (0.01, False), (None, False)])
def test_plan_says_that_its_profile_was_measured_beside_others(
    share: float | None, is_said: bool, stage: Stage, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    measured = Profile.load(stage.profile).model_copy(update={"others_share": share})
    measured.save(tmp_path / "profile.json")
    files = ["--profile", str(tmp_path / "profile.json"), "--trace", str(stage.trace)]
    assert main(["plan", *stage.pair(), *files, "--devices", "1", "--policy", "serial_chain", "--jobs", "1"]) == 0
    assert ("Other processes took 31.0 % of the cores' time" in capsys.readouterr().err) is is_said


def test_plan_can_be_moved_with_what_lies_beside_it(stage: Stage, tmp_path: Path) -> None:
    for path in (stage.plan, stage.profile, stage.trace):
        shutil.copy(path, tmp_path)
    assert main(["simulate", "--plan", str(tmp_path / "plan.json")]) == 0


def test_plan_says_what_it_chose_and_why(stage: Stage, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = ["--profile", str(stage.profile), "--trace", str(stage.trace), "--out", str(tmp_path / "plan.json")]
    assert main(["plan", *stage.pair(), *files, "--devices", "1", "--jobs", "1"]) == 0
    plan, text = Plan.load(tmp_path / "plan.json"), capsys.readouterr().out
    assert f"Chosen: {plan.chosen.describe()}, for " in " ".join(text.split())  # lines are broken
    assert all(f"\n  {policy} " in text for policy in plan.candidates)
    assert "Speed of light" in text
    assert "measured" in text.split("Predicted time rests on: ")[1]
    assert f"Simulated {plan.num_simulated} candidates" in text
    assert all(rejection.reason in " ".join(text.split()) for rejection in plan.rejections[:8])


@pytest.mark.parametrize("policy", ["autoregressive", "serial_tree", pytest.param("swiftspec", marks=two_cores)])
def test_simulation_is_repeatable(stage: Stage, tmp_path: Path, policy: str) -> None:
    for name in ("one", "two"):
        outputs = ["--timeline", str(tmp_path / f"{name}.trace"), "--json", str(tmp_path / f"{name}.json")]
        assert main(["simulate", "--plan", str(stage.plan), "--policy", policy, "--seed", "3", *outputs]) == 0
    assert read(tmp_path / "one.trace") == read(tmp_path / "two.trace")
    result = read(tmp_path / "one.json")
    assert result == read(tmp_path / "two.json")
    # Forwards that were measured in a single pass are not known exactly: every prompt runs with opposite draws.
    assert result["metrics"]["num_tokens"] == 2 * AcceptanceTrace.load(stage.trace).num_tokens


@pytest.mark.parametrize(
    "policy", ["autoregressive", "serial_chain", "serial_tree", pytest.param("swiftspec", marks=two_cores)]
)
def test_run_generates_what_was_traced(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    out = ["--timeline", str(tmp_path / "run.json"), "--json", str(tmp_path / "result.json")]
    assert main(["run", "--plan", str(stage.plan), "--prompts", str(stage.prompts), "--policy", policy, *out]) == 0
    result, captured = read(tmp_path / "result.json"), capsys.readouterr()
    traced = AcceptanceTrace.load(stage.trace).prompts
    tokenizer = Tokenizer(stage.target)
    for prompt, expected, text in zip(result["prompts"], traced, TEXTS, strict=True):
        assert prompt["id"] == expected.prompt_id
        assert prompt["output_token_ids"] == expected.target_tokens.tolist()
        assert prompt["prompt_token_count"] == len(tokenizer.encode(text)) == expected.prompt_length
        assert prompt["text"] == tokenizer.decode(prompt["output_token_ids"])
        assert prompt["text"] in captured.out
    assert f"{policy} " in captured.err
    phases = {event["name"] for event in read(tmp_path / "run.json")["traceEvents"] if event["ph"] == "X"}
    assert {"prefill", "verify", "commit"} <= phases <= set(Phase)


def test_result_of_run_has_exactly_its_keys(stage: Stage, tmp_path: Path) -> None:
    assert main(["run", "--plan", str(stage.plan), "--prompt", "import", "--json", str(tmp_path / "r.json")]) == 0
    result = read(tmp_path / "r.json")
    assert sorted(result) == [
        "acceptance_length",
        "overlap_fraction",
        "policy",
        "processes",
        "prompts",
        "tokens_per_round",
        "tokens_per_s",
    ]
    assert sorted(result["prompts"][0]) == [
        "acceptance_length",
        "draft_losses",
        "id",
        "output_token_ids",
        "prompt_token_count",
        "rounds",
        "text",
        "tokens_per_s",
        "tpot_s",
        "ttft_s",
    ]
    assert sorted(result["processes"][0]) == ["cores", "group", "node", "pid", "rank", "role"]
    assert result["policy"] == Plan.load(stage.plan).chosen.policy


@two_cores
def test_roles_of_a_disaggregated_policy_have_pids_and_cores_of_their_own(stage: Stage, tmp_path: Path) -> None:
    out = ["--json", str(tmp_path / "r.json")]
    assert main(["run", "--plan", str(stage.plan), "--prompt", "import", "--policy", "swiftspec", *out]) == 0
    target, draft = read(tmp_path / "r.json")["processes"]
    assert (target["role"], draft["role"]) == ("target", "draft")
    assert target["pid"] != draft["pid"]
    assert not set(target["cores"]) & set(draft["cores"])
    assert not any(is_running(process["pid"]) for process in (target, draft))


def test_single_token_is_no_round(stage: Stage, tmp_path: Path) -> None:
    limit = ["--policy", "autoregressive", "--max-new-tokens", "1", "--json", str(tmp_path / "r.json")]
    assert main(["run", "--plan", str(stage.plan), "--prompt", "import", *limit]) == 0
    (prompt,) = read(tmp_path / "r.json")["prompts"]
    assert (prompt["rounds"], prompt["acceptance_length"], prompt["tpot_s"]) == (0, 0.0, 0.0)
    assert len(prompt["output_token_ids"]) == 1


def test_sampling_depends_on_the_seed_alone(stage: Stage, tmp_path: Path) -> None:
    outputs = {}
    for name, policy, seed in (("a", "autoregressive", 1), ("b", "serial_tree", 1), ("c", "autoregressive", 2)):
        options = ["--temperature", "1", "--top-k", "50", "--seed", str(seed), "--policy", policy]
        out = ["--json", str(tmp_path / f"{name}.json")]
        assert main(["run", "--plan", str(stage.plan), "--prompt", "import os", *options, *out]) == 0
        outputs[name] = read(tmp_path / f"{name}.json")["prompts"][0]["output_token_ids"]
    assert outputs["a"] == outputs["b"] != outputs["c"]


def test_validation_holds_predicted_measured_and_error(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--json", str(tmp_path / "report.json"), "--plot", str(tmp_path / "report.png")]
    assert main(["validate", "--plan", str(stage.plan), "--prompts", str(stage.prompts), "--repeats", "2", *out]) == 0
    report, raw = Report.load(tmp_path / "report.json"), read(tmp_path / "report.json")
    assert [policy.policy for policy in report.policies] == policies_of(stage)
    assert report.plan_sha256 == file_sha256(stage.plan)
    assert report.num_prompts == len(TEXTS)
    for policy in report.policies:
        assert len(policy.repeats) == 2
        assert policy.identical_output
        assert policy.predicted == Plan.load(stage.plan).candidates[policy.policy].prediction.metrics.figures
        assert policy.retraced is not None
        # A chain in turn with its target leaves nothing to time: on the same texts its rounds are the simulator's own.
        if policy.policy in ("autoregressive", "serial_chain"):
            assert policy.retraced.tokens_per_round == policy.measured.tokens_per_round
    assert {"tokens_per_s", "round_s", "tokens_per_round"} == set(raw["policies"][0]["error"])
    assert {"median", "p95"} == set(raw["policies"][0]["measured"]["round_s"])
    assert raw["regret"] >= 0
    text = capsys.readouterr().out
    assert "Predicted against measured" in text
    assert "Greedy output is the same for all policies" in text
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_chosen_policy_is_validated_unasked(stage: Stage, tmp_path: Path) -> None:
    chosen = Plan.load(stage.plan).chosen.policy
    other = next(policy for policy in policies_of(stage) if policy != chosen)
    options = ["--policies", other, "--repeats", "1", "--num-prompts", "2", "--json", str(tmp_path / "report.json")]
    assert main(["validate", "--plan", str(stage.plan), "--prompts", str(stage.prompts), *options]) == 0
    report = Report.load(tmp_path / "report.json")
    assert {policy.policy for policy in report.policies} == {chosen, other}
    assert report.num_prompts == 2


def test_inflated_directory_is_the_inflated_model(stage: Stage, tmp_path: Path) -> None:
    """As `profile` and `trace` write it, and the verb that did nothing else before."""
    out = ["--out", str(tmp_path / "large"), "--json", str(tmp_path / "shape.json")]
    assert main(["inflate", "--target", str(stage.target), "--inflate", "layers=3,hidden=96", *out]) == 0
    also = ["--inflate", "layers=3,hidden=96", "--save-inflated", str(tmp_path / "beside"), "--dtype", "fp32"]
    traced = ["--prompts", str(stage.prompts), "--max-new-tokens", "2", "--out", str(tmp_path / "t.npz")]
    assert main(["trace", "--target", str(stage.target), "--draft", str(stage.draft), *also, *traced]) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("large", "beside")]
    assert weights[0] == weights[1]
    spec, result = ModelSpec.from_directory(tmp_path / "large"), read(tmp_path / "shape.json")
    assert (spec.num_layers, spec.hidden_size) == (3, 96)
    assert result["after"]["num_parameters"] == spec.num_parameters > result["before"]["num_parameters"]
    assert read_vocabulary(tmp_path / "large") == read_vocabulary(stage.target)


def test_demo_goes_from_profile_to_report(stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "prompts"
    folder.mkdir()
    for name in ("trace", "validate"):
        shutil.copy(stage.prompts, folder / f"{name}.jsonl")
    with brief_profiles():
        demo(
            DemoFlags(
                directory=tmp_path / "demo",
                devices=1,
                plot=True,
                json=tmp_path / "demo.json",
            ),
            inflate="layers=3",
            dtype="float32",
            repeats=1,
            target=str(stage.target),
            draft=str(stage.draft),
            prompts=folder,
            new_tokens=8,
            num_prompts=2,
        )
    text = capsys.readouterr().out
    headings = [f"== {number}/5 " in text for number in range(1, 6)]
    assert headings == [True] * 5
    assert text.index("Predicted against measured") > text.index("== 5/5 ")
    assert Report.load(tmp_path / "demo" / "report.json").num_prompts == 2
    assert Plan.load(tmp_path / "demo" / "plan.json").target.inflate == "layers=3"
    assert read(tmp_path / "demo.json")["report"]["schema"] == "swiftspec.report"
    assert len(list((tmp_path / "demo").glob("*.png"))) == 4
    assert main(["run", "--plan", str(tmp_path / "demo" / "plan.json"), "--prompt", "x"]) == 0


def test_interrupted_run_keeps_what_was_generated_and_leaves_no_process(slow_plan: Path, tmp_path: Path) -> None:
    """On one process; tests/cli/test_faults.py interrupts two."""
    command = [sys.executable, "-m", "swiftspec", "run", "--plan", str(slow_plan), "--policy", "autoregressive"]
    options = ["--prompt", "import", "--max-new-tokens", "200", "--json", str(tmp_path / "r.json")]
    process = subprocess.Popen(
        [*command, *options],
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    assert process.stdout is not None
    first = process.stdout.read(1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group hears it
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert errors.endswith(b"swiftspec: interrupted\n")
    result = read(tmp_path / "r.json")
    (prompt,) = result["prompts"]
    assert 1 <= len(prompt["output_token_ids"]) < 200
    assert (first + rest).decode().startswith(prompt["text"])
    assert not any(is_running(process["pid"]) for process in result["processes"])


def test_a_signal_between_two_requests_keeps_what_was_generated(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show, seen = console.heading, []

    def heading(text: str) -> None:
        seen.append(text)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        show(text)

    monkeypatch.setattr(console, "heading", heading)
    out = ["--json", str(tmp_path / "r.json"), "--policy", "autoregressive"]
    assert main(["run", "--plan", str(stage.plan), "--prompts", str(stage.prompts), *out]) == 143
    whole = [prompt["id"] for prompt in read(tmp_path / "r.json")["prompts"] if prompt["rounds"]]
    assert whole[:2] == ["text-0", "text-1"]
    assert seen == ["text-0", "text-1", "text-2"]


def test_interrupted_before_the_first_token_leaves_nothing(slow_plan: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "swiftspec", "validate", "--plan", str(slow_plan), "--max-new-tokens", "200"]
    (tmp_path / "p.jsonl").write_text('{"prompt": "import"}\n')
    options = ["--policies", "swiftspec,autoregressive", "--prompts", str(tmp_path / "p.jsonl")]
    out = ["--json", str(tmp_path / "r.json")]
    process = subprocess.Popen(
        [*command, *options, *out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
        preexec_fn=hear_interrupts,
    )
    assert process.stderr is not None
    assert any(line.startswith("validate: ") for line in process.stderr)  # past the loading
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.splitlines()[-1]) == (130, "swiftspec: interrupted")
    assert "Traceback" not in errors
    assert not (tmp_path / "r.json").exists()
    group = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True, check=False)
    assert gone_within(list(map(int, group.stdout.split())), 30.0)
