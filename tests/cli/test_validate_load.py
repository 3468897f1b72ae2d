"""`validate --load`: a plan's policies serve requests for real, beside what is simulated."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.api.validating import validate_load
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.load_report import LoadReport
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.cli.app import main
from swiftspec.timing.timeline import Phase
from tests.cli.conftest import Stage
from tests.engine.conftest import two_cores

pytestmark = [pytest.mark.extra("engine"), two_cores]
LENGTHS = ("--prompt-tokens", "fixed:20", "--output-tokens", "uniform:8:24")


def drawn(folder: Path, arrivals: str, requests: int = 12, *options: str) -> Path:
    path = folder / "W.json"
    arguments = ("--arrivals", arrivals, "--requests", str(requests), *LENGTHS, *options, "--out", str(path))
    assert main(["workload", *arguments]) == 0
    return path


def test_predicted_and_measured_stand_side_by_side(
    stage: Stage, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = drawn(tmp_path, "poisson:40", 12, "--class", "chat:ttft=60000,tpot=10000")
    inputs = ("--plan", str(stage.plan), "--prompts", str(stage.prompts), "--load", str(workload))
    out, plot = tmp_path / "report.json", tmp_path / "steps.png"
    policies = ("--policies", "autoregressive,serial_chain,swiftspec")
    assert main(["validate", *inputs, *policies, "--json", str(out), "--plot", str(plot)]) == 0
    report = LoadReport.load(out)
    assert {policy.policy for policy in report.policies} >= {"autoregressive", "serial_chain", "swiftspec"}
    wanted = sum(request.output_tokens for request in Workload.load(workload).requests)
    for policy in report.policies:
        for metrics in (policy.predicted, policy.measured):
            assert metrics.completed == 12
            assert metrics.output_throughput * metrics.duration_s == pytest.approx(wanted)
        assert policy.measured.attainment == {"chat": 1.0}
        assert policy.error.tpot == pytest.approx(policy.predicted.tpot_s.mean / policy.measured.tpot_s.mean - 1)
        assert policy.late_s < 60
    assert report.median_error("e2el") is not None
    printed = capsys.readouterr().out
    assert "Median errors of the means over policies: TTFT" in printed
    assert "p99 meas." in printed
    assert plot.read_bytes()[:4] == b"\x89PNG"


def test_a_closed_loop_from_python_shares_steps(stage: Stage, tmp_path: Path) -> None:
    workload = Workload.load(drawn(tmp_path, "closed:4", 12))
    texts = ["def add(a, b):", "import os"]
    compared = validate_load(Planned.load(stage.plan), workload, texts, policies=["serial_chain"])
    (load,) = [policy for policy in compared.report.policies if policy.policy == "serial_chain"]
    assert load.mean_batch is not None
    assert 1 < load.mean_batch <= 4
    assert load.late_s == 0
    assert len(compared.measured) == len(compared.simulated) == 12
    assert any(span.phase is Phase.VERIFY for span in compared.measured[0].spans)


def test_a_small_cache_preempts_in_both(stage: Stage, tmp_path: Path) -> None:
    workload = Workload.load(drawn(tmp_path, "closed:6", 24))
    options = LoadOptions(num_blocks=10)
    compared = validate_load(
        Planned.load(stage.plan), workload, ["import os"], policies=["serial_chain"], options=options
    )
    for load in compared.report.policies:
        assert (load.predicted.completed, load.measured.completed) == (24, 24)
    (load,) = [policy for policy in compared.report.policies if policy.policy == "serial_chain"]
    assert min(load.predicted.num_preemptions, load.measured.num_preemptions) > 0


def test_bad_input_is_one_sentence(stage: Stage, tmp_path: Path, fails: Callable[..., str]) -> None:
    workload = drawn(tmp_path, "poisson:40")
    inputs = ("validate", "--plan", stage.plan, "--prompts", stage.prompts)
    assert "--repeats is 2; with --load" in fails(*inputs, "--load", workload, "--repeats", "2")
    assert "--set max_running is 3; it is only for --load" in fails(*inputs, "--set", "max_running=3")
    assert "needs 3 blocks of 16; the cache has 1" in fails(*inputs, "--load", workload, "--set", "kv_blocks=1")
    content = json.loads(workload.read_text())
    content["requests"][3]["output_tokens"] = 100_000
    long = tmp_path / "long.json"
    long.write_text(json.dumps(content))
    assert "requests[3]" in fails(*inputs, "--load", long)
    content["requests"] = []
    long.write_text(json.dumps(content))
    assert "requests" in fails(*inputs, "--load", long)
