"""`swiftspec study latency --url`: a running server measured through HTTP."""

import json
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.studies.latency_law.document import CurveKind, Sweep
from tests.engine.conftest import two_cores
from tests.server.running import running, write_plan

pytestmark = [pytest.mark.extra("engine"), two_cores]
NUM_REQUESTS, OUTPUT_TOKENS = 32, 8


def test_a_server_is_measured_at_rising_rates(tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "sweep.json"
    prompts.write_text(json.dumps({"prompt": "def add(a, b):"}))
    lengths = ("--prompt-tokens", "fixed:12", "--output-tokens", f"fixed:{OUTPUT_TOKENS}")
    asked = ("--requests", str(NUM_REQUESTS), "--max-running", "4", *lengths, "--num-draft-tokens", "2")
    options = ("--policy", "serial_chain", "--max-running", "4", "--keep-timelines", str(NUM_REQUESTS))
    with running(write_plan(tmp_path), *options, log=tmp_path / "log") as server:
        before = server.metric("swiftspec:generation_tokens_total")
        urls = ("--url", server.url, "--plain-url", server.url)  # whether it is plain, nobody checks
        assert main(["study", "latency", *urls, "--prompts", str(prompts), *asked, "--json", str(out)]) == 0
        told = server.metric("swiftspec:generation_tokens_total") - before
    swept = Sweep.load(out)
    assert (swept.url, swept.plan_sha256) == (server.url, None)
    assert [(policy.policy, policy.rows) for policy in swept.policies] == [("autoregressive", 1), ("server", 3)]
    assert len(swept.comparisons) == 1
    num_tokens = 0
    for policy in swept.policies:
        assert list(policy.curves) == [CurveKind.MEASURED]
        curve = policy.curve
        runs = [curve.synchronous, *curve.points, curve.saturating]
        assert [run.num_requests for run in runs] == [32, 8, 8, 12, 16, 20, 24, 28, 32, 32]
        rates = [point.rate for point in curve.points]
        assert rates == pytest.approx([number / 8 * rates[-1] for number in range(1, 9)])
        assert curve.derived is not None  # from the timelines that it keeps
        assert curve.synchronous.metrics.output_throughput > 0
        num_tokens += OUTPUT_TOKENS * sum(run.num_requests for run in runs)
    assert told >= num_tokens  # and those that warmed it up
