"""`plan --load`: files, printed figures, and the same figures when the plan is simulated."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import swiftspec
from swiftspec.api.planning import planned_load, simulate_load
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.workload import Workload
from swiftspec.cli.app import main
from swiftspec.files.document import file_sha256
from swiftspec.planner.load import Load
from swiftspec.reports.formatting import money
from swiftspec.reports.under_load import choice, under_load
from swiftspec.workload import Arrivals, Lengths, make_workload
from tests.test_architecture import ROOT

pytestmark = pytest.mark.usefixtures("little_text")

Fails = Callable[..., str]

PAIR = ["--target", "llama-3-8b", "--draft", "llama-3.2-1b", "--device", "h800", "--devices", "2", "--dtype", "int4"]
ASKED = [*PAIR, "--prompt-tokens", "96", "--jobs", "1", "--policy", "swiftspec"]
LIMITS = ["--limit", "ttft=200", "--limit", "tpot=1.8", "--limit", "p=10"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("load")
    lengths = ["--prompt-tokens", "fixed:40", "--output-tokens", "fixed:24", "--class", "chat:ttft=900,tpot=90"]
    assert main(["workload", "--arrivals", "poisson:40", "--requests", "30", *lengths, "--out", f"{made}/W.json"]) == 0
    outputs = ["--out", f"{made}/plan.json", "--json", f"{made}/r.json", "--report", f"{made}/plan.html"]
    assert main(["plan", *ASKED, "--load", f"{made}/W.json", *LIMITS, *outputs]) == 0
    return made


@pytest.fixture(scope="module")
def made(folder: Path) -> Plan:
    return Plan.load(folder / "plan.json")


def test_a_plan_names_its_workload_and_its_limits(made: Plan, folder: Path) -> None:
    load = made.under_load
    assert load is not None
    assert (load.workload.path, load.workload.sha256) == ("W.json", file_sha256(folder / "W.json"))
    assert [(one.name, one.ttft_s, one.tpot_s) for one in load.goal.classes] == [("chat", 0.2, 0.0018)]
    assert (load.goal.percentile, load.num_simulated, load.num_requests) == (10, 30, 30)
    assert load.predictions.keys() == made.candidates.keys() == {"swiftspec", "autoregressive"}


def test_results_have_the_figures_of_every_policy(folder: Path) -> None:
    load = json.loads((folder / "r.json").read_text())["under_load"]
    assert set(load) >= {"workload", "goal", "options", "predictions", "single_request", "num_candidates"}
    for prediction in load["predictions"].values():
        assert 0 <= prediction["attained"] <= 1
        metrics = prediction["metrics"]
        assert metrics["request_goodput"] <= metrics["request_throughput"]
        assert {"mean", "p95"} <= metrics["ttft_s"].keys() & metrics["tpot_s"].keys() & metrics["e2el_s"].keys()


def test_the_report_has_a_section_about_the_load(folder: Path) -> None:
    page = (folder / "plan.html").read_text()
    assert "Under load" in page
    assert "requests/s within their limits" in page


def test_a_price_becomes_that_of_a_million_tokens_of_the_load(made: Plan) -> None:
    priced = made.model_copy(update={"goal": made.goal.model_copy(update={"price_per_hour": 7.2})})
    load = priced.under_load
    assert load is not None
    costs = {
        policy: 2e3 * len(made.candidates[policy].devices) / found.metrics.output_throughput
        for policy, found in load.predictions.items()
    }
    section = under_load(priced)
    assert section is not None
    chosen, plain = costs.pop(made.chosen.policy), costs.get("autoregressive")
    without = "" if plain is None else f", {money(plain)} without a draft"
    assert f"A million output tokens cost {money(chosen)} at this load{without}." in section.parts
    unpriced = under_load(made)
    assert unpriced is not None
    assert not any("million" in str(part) for part in unpriced.parts)
    # Of clients it is what they get while all of them ask: the end of a run, when fewer are left, is no load.
    clients = load.model_copy(update={"arrivals": "closed:4"})
    found = load.predictions[made.chosen.policy]
    tokens = found.metrics.output_throughput / found.metrics.request_throughput
    assert clients.output_tokens_per_s(found) == pytest.approx(4 * tokens / found.metrics.e2el_s.mean)


@pytest.mark.parametrize("policy", ["swiftspec", "autoregressive"])
def test_simulating_the_plan_gives_the_planned_figures(policy: str, made: Plan, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = ["--plan", str(folder / "plan.json"), "--load", str(folder / "W.json"), "--policy", policy]
    assert main(["simulate", *arguments, "--json", str(out)]) == 0
    simulated = json.loads(out.read_text())
    assert made.under_load is not None
    predicted = made.under_load.predictions[policy]
    assert simulated["metrics"] == predicted.metrics.model_dump(mode="json")
    assert simulated["mean_batch"] == predicted.mean_batch
    assert simulated["candidate"] == predicted.candidate


def test_another_workload_has_its_own_limits(made: Plan, folder: Path) -> None:
    planned = swiftspec.Planned.load(folder / "plan.json")
    same, other = Workload.load(folder / "W.json"), Workload.load(folder / "W.json").scaled(rate=39.0)
    assert planned_load(made, same) is not None
    assert planned_load(made, other) is None
    assert simulate_load(planned, same).metrics.attainment["chat"] < 1.0
    assert simulate_load(planned, other).metrics.attainment["chat"] == 1.0


def test_no_acceptable_candidate_is_said_in_a_sentence(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = ["--limit", "ttft=0.001", "--limit", "p=99", "--set", "load_requests=10", "--set", "max_running=4"]
    out = tmp_path / "plan.json"
    assert main(["plan", *ASKED, "--load", str(folder / "W.json"), *limits, "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "No candidate keeps the limits of 99 % of the requests: the chosen one" in said
    assert "keeps those of 0.0 %" in said
    assert "the first 10 of 30 requests" in said
    assert "at most 4 at once" in said
    assert "Objective: goodput" in said
    # Its file is elsewhere, and its name is absolute.
    load = Plan.load(out).under_load
    assert load is not None
    assert Path(load.workload.path) == (folder / "W.json").resolve()


def test_the_same_from_python_with_a_workload_that_is_no_file_yet(made: Plan, folder: Path, tmp_path: Path) -> None:
    workload = Workload.load(folder / "W.json")
    h800 = swiftspec.Deployment(device="h800", num_devices=2, quant="int4", context=96)
    goal = swiftspec.Goal(ttft_s=0.2, tpot_s=0.0018, percentile=10.0)
    options = swiftspec.SearchOptions(num_jobs=1, policy="swiftspec", goal=goal)
    planned = swiftspec.plan("llama-3-8b", "llama-3.2-1b", deployment=h800, options=options, workload=workload)
    saved = planned.save(tmp_path / "plan.json")
    assert saved.under_load is not None
    assert made.under_load is not None
    assert saved.under_load.predictions == made.under_load.predictions
    assert saved.under_load.workload.path == "plan.workload.json"
    assert saved.under_load.workload.sha256 == file_sha256(tmp_path / "plan.workload.json")
    (tmp_path / "below").mkdir()
    again = swiftspec.Planned.load(tmp_path / "plan.json").save(tmp_path / "below" / "plan.json")
    assert again.under_load is not None
    assert Path(again.under_load.workload.path) == (tmp_path / "plan.workload.json").resolve()


def test_a_plan_without_a_workload_does_not_mention_one(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    assert main(["plan", *ASKED, "--out", str(out)]) == 0
    assert "under_load" not in json.loads(out.read_text())


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    assert "--load workload.json --limit ttft=500,tpot=30" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--limit", "p=99"], "--limit p is 99; it needs --load"),
        (["--load", "{W}", "--limit", "ttft=-200"], "--limit ttft is -200; expected a positive number of milliseconds"),
        (["--load", "{W}", "--limit", "tpot=nan"], "--limit tpot is nan; expected a positive number of milliseconds"),
        (["--load", "{W}", "--limit", "p=0"], "--limit p is 0; expected more than 0, and at most 100"),
        (["--load", "{W}", "--limit", "p=100.1"], "--limit p is 100.1; expected more than 0"),
        (["--load", "{W}", "--objective", "tpot"], "--objective is tpot; with a workload the objective is goodput"),
        (["--load", "{empty}"], "requests is []"),
        (["--load", "{long}"], "requests[0].prompt_tokens is 9000; with 24 output tokens that is more than the"),
        (["--load", "nowhere.json"], "nowhere.json"),
    ],
)
def test_bad_input_is_one_sentence(flags: list[str], sentence: str, folder: Path, tmp_path: Path, fails: Fails) -> None:
    content = json.loads((folder / "W.json").read_text())
    for name, changes in (("empty", []), ("long", [content["requests"][0] | {"prompt_tokens": 9000}])):
        (tmp_path / f"{name}.json").write_text(json.dumps(content | {"requests": changes}))
    names = {"W": folder / "W.json", "empty": tmp_path / "empty.json", "long": tmp_path / "long.json"}
    given = [flag.format(**names) for flag in flags]
    assert sentence in fails("plan", *ASKED, *given, "--out", tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


def test_a_recorded_plans_context_is_checked_too(folder: Path, tmp_path: Path, fails: Fails) -> None:
    recorded = ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores"
    content = json.loads((folder / "W.json").read_text())
    content["requests"] = [content["requests"][0] | {"prompt_tokens": 9000}]
    (tmp_path / "W.json").write_text(json.dumps(content))
    pair = ["--target", "demo/target", "--draft", "demo/draft", "--inflate", "layers=48", "--devices", "2"]
    files = ["--profile", recorded / "profile.json", "--trace", recorded / "trace.npz"]
    sentence = fails("plan", *pair, *files, "--load", tmp_path / "W.json", "--out", tmp_path / "plan.json")
    assert "requests[0].prompt_tokens is 9000" in sentence
    assert "positions of demo/target" in sentence


def test_without_limits_the_mean_end_to_end_time_is_the_goal_and_that_is_said(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "closed.json", tmp_path / "plan.json"
    lengths = ["--prompt-tokens", "fixed:40", "--output-tokens", "fixed:24"]
    assert main(["workload", "--arrivals", "closed:3", "--requests", "12", *lengths, "--out", str(path)]) == 0
    assert main(["plan", *ASKED, "--load", str(path), "--out", str(out)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "for the lowest mean end-to-end time" in said
    assert "neither the options nor the workload's classes have limits" in said
    assert main(["simulate", "--plan", str(out), "--load", str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The plan was made for this workload. For 12 requests it predicted a mean TPOT of" in said
    assert "limits" not in said


def test_a_plan_is_not_written_over_its_workload(folder: Path, tmp_path: Path, fails: Fails) -> None:
    path = Path(shutil.copy(folder / "W.json", tmp_path / "W.json"))
    assert "which is read as --load" in fails("plan", *ASKED, "--load", path, "--out", path)


def test_predictions_of_other_policies_than_the_plans_are_refused(folder: Path, tmp_path: Path, fails: Fails) -> None:
    content = json.loads((folder / "plan.json").read_text())
    del content["under_load"]["predictions"]["autoregressive"]
    (tmp_path / "plan.json").write_text(json.dumps(content))
    sentence = fails("simulate", "--plan", tmp_path / "plan.json")
    assert "under_load.predictions are of swiftspec; expected one of each of swiftspec, autoregressive" in sentence


def test_the_devices_have_room_for_so_many_caches() -> None:
    """A 70B model in bf16 leaves little of two H100s: 32 requests of 2,000 tokens do not fit at once."""
    workload = make_workload(
        Arrivals.parse("poisson:20", field="arrivals"),
        num_requests=32,
        prompt_tokens=Lengths.parse("fixed:1900", field="prompt_tokens"),
        output_tokens=Lengths.parse("fixed:100", field="output_tokens"),
    )
    options = swiftspec.SearchOptions(
        num_jobs=1, policy="autoregressive", load=Load(workload=workload, options=LoadOptions(max_running=32))
    )
    h100 = swiftspec.Deployment(device="h100-sxm", num_devices=2)
    planned = swiftspec.plan("llama-3-70b", "llama-3.2-1b", deployment=h100, options=options)
    assert planned.plan.under_load is not None
    predicted = planned.plan.under_load.predictions["autoregressive"]
    assert predicted.num_blocks is not None
    assert 1000 < predicted.num_blocks < 32 * 2000 / 16
    assert predicted.metrics.num_preemptions > 0
    said = choice(planned.plan, planned.plan.under_load)
    assert f"room for {predicted.num_blocks:,} cache blocks of 16 tokens" in said
    assert simulate_load(planned, workload).metrics == predicted.metrics


def test_a_fleet_is_planned_saved_and_printed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "fleet.json", tmp_path / "fleet.html"
    limits = ["--limit", "ttft=900", "--limit", "tpot=9", "--set", "price_per_hour=2"]
    load = ["--load", str(folder / "W.json"), "--fleet", "6", *limits]
    assert main(["plan", *ASKED, *load, "--out", str(out), "--report", str(page)]) == 0
    made = Plan.load(out)
    assert made.fleet is not None
    assert made.fleet.chosen.policy == made.chosen.policy == "swiftspec"
    share = Workload.load(tmp_path / "fleet.workload.json")
    assert share.rate == pytest.approx(40 / made.fleet.num_replicas, rel=0.1)
    said = " ".join(capsys.readouterr().out.split())
    assert "Fleet for 40 requests/s" in said or "No fleet of 6" in said
    assert "Pareto front within the limits" in said
    text = page.read_text()
    top = text[: text.index("Kinds of replicas")]
    serves = r"replicas? of swiftspec [^<]* serves? 40 requests/s: [0-9.]+ tokens/s for a user"
    assert re.search(serves if made.fleet.is_enough else "No fleet keeps the limits of 40 requests/s", top)
    assert "Limits: TTFT 900 ms and TPOT 9.00 ms" in top
    assert "drafting gains (90 %)" in top
    assert "Users&#x27; speed against tokens per device" in text or "Users' speed against tokens per device" in text
    assert "Attainment by class" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fleet", "4"], "--fleet is 4; it needs --load"),
        (["--fleet", "0", "--load", "{folder}/W.json"], "--fleet is '0'; expected at least 1"),
        (
            [
                "--fleet",
                "4",
                "--load",
                "{folder}/W.json",
                "--dtype",
                "fp8",
                "--engine",
                "vllm",
                "--set",
                "transfer_ms=5",
            ],
            "transfer_ms is 5; fleets read their prompts themselves",
        ),
    ],
)
def test_a_fleet_that_cannot_be_planned_is_one_sentence(
    flags: list[str], message: str, folder: Path, fails: Fails
) -> None:
    given = [flag.format(folder=folder) for flag in flags]
    assert message in fails("plan", *ASKED, *given, "--out", f"{folder}/none.json")
