"""How long a planner waits: whole commands, as their users run them, and the share of simulation in them."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from swiftspec.cli.app import main
from swiftspec.planner.drafts.shapes import Shapes
from swiftspec.planner.search import evaluation
from swiftspec.planner.under_load.predictor import Predictor

DEMO = Path(__file__).parents[2] / "swiftspec/profiles/demo-sapphire-rapids-2-cores"
COMMANDS = {
    "eight GPUs": "plan --target llama-3-70b --draft llama-3.2-3b --device h800-sxm --devices 8 --dtype int4",
    "drafts at four loads": "plan --target llama-3.3-70b --device h100 --dtype fp8 --load closed:1,4,16,64",
    "a fleet of 64": "plan --target llama-3-70b --draft llama-3.2-1b --device h100 --fleet 64 --load poisson:20 "
    "--limit ttft=500,tpot=30",
    "two cores, as the demo plans": f"plan --profile {DEMO / 'profile.json'} --trace {DEMO / 'trace.npz'} --devices 2 "
    "--target demo/target --draft demo/draft --inflate layers=48",
}


class Share:
    """Seconds within some functions, the outermost of them counted."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seconds, self._is_within = 0.0, False
        for owner, name in ((evaluation, "_outcome"), (Shapes, "point"), (Predictor, "serve")):
            patch.setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any, **named: Any) -> Any:
            if self._is_within:
                return function(*given, **named)
            self._is_within, begun_s = True, time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self._is_within = False
                self.seconds += time.perf_counter() - begun_s

        return timed


@pytest.mark.bench
@pytest.mark.parametrize("name", COMMANDS)
def test_a_plan(benchmark: BenchmarkFixture, name: str) -> None:
    command = [sys.executable, "-m", "swiftspec", *COMMANDS[name].split()]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=1)
    with pytest.MonkeyPatch.context() as patch:  # once more, in this process alone
        share, begun_s = Share(patch), time.process_time()
        assert main([*COMMANDS[name].split(), "--jobs", "1"]) == 0
        benchmark.extra_info["share of simulation"] = round(share.seconds / (time.process_time() - begun_s), 2)


@pytest.mark.bench
def test_help(benchmark: BenchmarkFixture) -> None:
    command = [sys.executable, "-m", "swiftspec", "--help"]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=5)
