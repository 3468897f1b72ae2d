"""`simulate --load` on a recorded plan."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swiftspec.api.planning import simulate_load
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.cli.app import main
from tests.test_architecture import ROOT

PLAN = ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores/plan.json"
DRAWN = ("--prompt-tokens", "fixed:40", "--output-tokens", "fixed:24")


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load") / "W.json"
    limits = ("--class", "chat:ttft=1000,tpot=2")
    assert main(["workload", "--arrivals", "poisson:20", "--requests", "40", *DRAWN, *limits, "--out", str(path)]) == 0
    return path


@pytest.mark.extra("plots")
@pytest.mark.parametrize("policy", ["autoregressive", "serial_chain", "swiftspec"])
def test_figures_are_printed_and_written(
    policy: str, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, timeline, plot = (tmp_path / name for name in ("out.json", "timeline.json", "steps.png"))
    outputs = ("--json", str(out), "--timeline", str(timeline), "--plot", str(plot))
    assert main(["simulate", "--plan", str(PLAN), "--load", str(workload), "--policy", policy, *outputs]) == 0
    result = json.loads(out.read_text())
    metrics = result["metrics"]
    assert (metrics["completed"], metrics["refused"]) == (40, 0)
    assert 0 < metrics["ttft_s"]["p50"] <= metrics["ttft_s"]["p99"] < metrics["e2el_s"]["p99"]
    assert 0 <= metrics["attainment"]["chat"] < 1
    assert 1 < result["mean_batch"] <= 8
    printed = capsys.readouterr().out
    assert "within their limits, chat" in printed
    assert "output tokens/s" in printed
    assert plot.read_bytes()[:4] == b"\x89PNG"
    assert {event["args"]["request"] for event in json.loads(timeline.read_text())["traceEvents"] if event["ph"] == "X"}


def test_more_at_once_is_more_throughput_and_a_seed_gives_one_result(workload: Path) -> None:
    one, eight, again = (
        simulate_load(PLAN, workload, policy="autoregressive", options=LoadOptions(max_running=count)).metrics
        for count in (1, 8, 8)
    )
    assert eight.output_throughput > 1.2 * one.output_throughput  # how much more is the recorded machine's
    assert eight == again


def test_a_request_beyond_the_targets_context_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "W.json"
    long = ("--prompt-tokens", "fixed:1020", "--output-tokens", "fixed:24")
    assert main(["workload", "--arrivals", "poisson:2", "--requests", "32", *long, "--out", str(path)]) == 0
    for *verb, flag in (("simulate", "--load"), ("study", "latency", "--workload")):
        capsys.readouterr()
        assert main([*verb, "--plan", str(PLAN), "--policy", "autoregressive", flag, str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "requests[0] has 1020 tokens; with 24 output tokens" in line
        assert line.endswith("that is more than the 1024 positions of demo/target")


def test_a_closed_loop_has_so_many_clients(tmp_path: Path) -> None:
    path = tmp_path / "W.json"
    assert main(["workload", "--arrivals", "closed:3", "--requests", "12", *DRAWN, "--out", str(path)]) == 0
    load = simulate_load(PLAN, path, policy="autoregressive")
    assert load.mean_batch <= 3
    assert load.metrics.queued_s.mean == 0


def test_a_small_cache_preempts(workload: Path) -> None:
    load = simulate_load(PLAN, workload, options=LoadOptions(num_blocks=20))
    assert load.metrics.num_preemptions > 0
    assert load.metrics.completed == 40


def test_a_control_decides_what_is_verified(workload: Path, tmp_path: Path) -> None:
    def tokens_per_round(*flags: str) -> float:
        out = tmp_path / "out.json"
        chain = ("--policy", "serial_chain", "--json", str(out))
        assert main(["simulate", "--plan", str(PLAN), "--load", str(workload), *chain, *flags]) == 0
        found: float = json.loads(out.read_text())["metrics"]["tokens_per_round"]
        return found

    assert tokens_per_round("--set", "control=fixed:0") < 1.1  # the first rounds are served whole
    assert 1 < tokens_per_round("--set", "control=goodput") < tokens_per_round()


def test_a_plan_made_for_a_control_is_simulated_under_it_unless_told_otherwise(workload: Path) -> None:
    planned = Planned.load(PLAN)
    plain = planned.plan.candidates["serial_chain"]
    steered = plain.model_copy(update={"control": "fixed:0"})
    others = tuple(one for one in planned.plan.candidates.values() if one is not plain)
    changed = planned.plan.model_copy(update={"chosen": steered, "alternatives": others})
    plan = Plan.parse(json.loads(changed.to_bytes()), source="plan")
    assert plan.chosen.control == "fixed:0"
    assert b'"control"' not in planned.plan.to_bytes()

    def tokens_per_round(control: str | None) -> float:
        served = simulate_load(replace(planned, plan=plan), workload, options=LoadOptions(control=control))
        return served.metrics.tokens_per_round

    of_plain = simulate_load(planned, workload, policy="serial_chain").metrics.tokens_per_round
    assert tokens_per_round(None) < 1.1 < tokens_per_round("fixed:3")
    assert tokens_per_round("none") == of_plain


def test_prompts_of_the_plans_trace_are_replayed_whole(tmp_path: Path) -> None:
    path, trace = tmp_path / "W.json", PLAN.parent / "trace.npz"
    arguments = ("--arrivals", "constant:5", "--requests", "6", "--trace", str(trace))
    assert main(["workload", *arguments, "--out", str(path)]) == 0
    load = simulate_load(PLAN, path)
    wanted = [request.output_tokens for request in Workload.load(path).requests]
    assert [record.num_tokens for record in load.records] == wanted


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--set", "max_running=3"), "--set max_running is 3; it is only for --load"),
        (("--set", "gather_ms=0.5"), "--set gather_ms is 0.5; it is only for --load"),
        (("--set", "control=goodput"), "--set control is goodput; it is only for --load"),
        (
            ("--load", "{workload}", "--set", "control=best"),
            "--set control is 'best'; expected one of fixed:K, goodput,",
        ),
        (("--load", "{workload}", "--policy", "pearl", "--set", "control=slo"), "whose verifications cannot be cut"),
        (("--load", "{workload}", "--max-new-tokens", "3"), "--max-new-tokens is 3; with --load, "),
        (("--load", "{workload}", "--plot", "x.gif"), "--plot is x.gif; expected a name ending in .png"),
        (("--load", "{workload}", "--set", "kv_blocks=3"), "a request of 64 tokens needs 5 blocks of 16"),
        (("--load", "{plan}"), "schema is 'swiftspec.plan'; expected 'swiftspec.workload'"),
        (("--load", "nowhere.json"), "nowhere.json"),
        (("--load", "{workload}", "--policy", "magic"), "policy is 'magic'"),
    ],
)
def test_bad_input_is_one_sentence(
    flags: tuple[str, ...], message: str, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [flag.format(workload=workload, plan=PLAN) for flag in flags]
    assert main(["simulate", "--plan", str(PLAN), *arguments]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in errors if "error:" in line]) == 1
    assert message in " ".join(errors)


@pytest.mark.parametrize("replay", ["true", "false"])
def test_the_output_says_whether_rounds_were_replayed(
    replay: str, workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert (
        main(
            ["simulate", "--plan", str(PLAN), "--load", str(workload), "--set", f"replay={replay}", "--json", str(out)]
        )
        == 0
    )
    method = "recorded rounds" if replay == "true" else "events"
    assert json.loads(out.read_text())["method"] == method
    assert f"simulated by {method}" in " ".join(capsys.readouterr().out.split())
