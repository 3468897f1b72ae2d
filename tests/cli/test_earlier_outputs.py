"""`--set earlier_outputs`: what `simulate` says of it, and plans that have no use for it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.metrics import Metrics
from swiftspec.artifacts.plan import Plan
from swiftspec.cli.app import main
from tests.test_architecture import ROOT

RECORDED = ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores"
SHORT = ("--max-new-tokens", "24")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded plan, with suffix decoding beside its choice, which is prompt lookup."""
    folder = tmp_path_factory.mktemp("plan")
    for name in ("profile.json", "trace.npz"):
        shutil.copy(RECORDED / name, folder)
    recorded = Plan.load(RECORDED / "plan.json")
    shape = {"verify_rows": 8, "max_spec_factor": 4.0}
    added = recorded.chosen.model_copy(update={"policy": "suffix_decoding", "shape": shape, "costs": None})
    alternatives = (added, *recorded.alternatives)
    recorded.model_copy(update={"alternatives": alternatives}).save(folder / "plan.json")
    return folder / "plan.json"


def simulated(plan: Path, *flags: str) -> dict[str, Any]:
    out = plan.parent / "out.json"
    arguments = ("--policy", "suffix_decoding", "--json", str(out), *flags)
    assert main(["simulate", "--plan", str(plan), *arguments]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_simulation_says_what_they_are_worth(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = simulated(plan, "--set", "earlier_outputs=50", *SHORT)
    own = simulated(plan, *SHORT)
    assert found["own_text_metrics"] == own["metrics"]
    assert "own_text_metrics" not in own
    more, less = (Metrics.model_validate(each).figures for each in (found["metrics"], own["metrics"]))
    assert more.tokens_per_round > less.tokens_per_round
    printed = " ".join(capsys.readouterr().out.split())
    assert "earlier_outputs=50)" in printed
    assert f"With the request's own text only: {less.tokens_per_round:.3f} tokens per round" in printed


def test_so_it_does_under_load(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = plan.parent / "W.json"
    drawn = ("--prompt-tokens", "fixed:40", "--output-tokens", "fixed:24")
    assert main(["workload", "--arrivals", "poisson:20", "--requests", "60", *drawn, "--out", str(workload)]) == 0
    found = simulated(plan, "--load", str(workload), "--set", "earlier_outputs=50")
    own = simulated(plan, "--load", str(workload), "--set", "replay=false")
    assert found["own_text_metrics"] == own["metrics"]
    assert found["num_repeated"] > 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        f"The texts of {found['num_repeated']} of 60 requests begin with the traced prompt of an earlier one" in printed
    )


@pytest.mark.parametrize("verb", ["simulate", "serve"])
def test_a_policy_that_searches_none_is_refused(verb: str, plan: Path, fails: Callable[..., str]) -> None:
    said = fails(verb, "--plan", plan, "--set", "earlier_outputs=9")
    assert said == (
        "--set earlier_outputs is 9; prompt_lookup searches none: expected the policy suffix_decoding or "
        "suffix_or_draft"
    )
    said = fails(verb, "--plan", plan, "--policy", "suffix_decoding", "--set", "earlier_outputs=0")
    assert said == "--set earlier_outputs is 0; expected a whole number of at least 1"
