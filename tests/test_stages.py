"""The stages as functions: what a notebook does, without the command line."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import swiftspec
from swiftspec.artifacts.timeline import measure
from tests.cli.conftest import brief_profiles
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.pairs import write_pair

ONE_JOB = swiftspec.SearchOptions(num_jobs=1)
H800 = swiftspec.Deployment(device="h800", num_devices=2, quant="int4")
PAIR = {"target": "llama-3-8b", "draft": "llama-3.2-1b", "deployment": H800}


@pytest.fixture(scope="module", autouse=True)
def few_prompts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("swiftspec.planner.for_device.NUM_PROMPTS", 2)
        patch.setattr("swiftspec.planner.for_device.NUM_NEW_TOKENS", 32)
        yield


@pytest.fixture(scope="module")
def planned(few_prompts: None) -> swiftspec.Planned:
    return swiftspec.plan("Llama-3-8B", "llama-3.2-1b", deployment=H800, options=ONE_JOB)


def test_a_plan_for_a_deployment_is_saved_with_what_it_rests_on(planned: swiftspec.Planned, tmp_path: Path) -> None:
    assert "tokens/s predicted" in str(planned)
    planned.save(tmp_path / "plan.json")
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "plan.profile.json", "plan.trace.npz"}
    loaded = swiftspec.Planned.load(tmp_path / "plan.json")
    assert loaded.plan.chosen == planned.plan.chosen
    assert loaded.profile == planned.profile
    assert loaded.save(tmp_path / "again.json").profile.path == "plan.profile.json"


def test_what_is_simulated_is_what_is_predicted(planned: swiftspec.Planned) -> None:
    figures = measure(swiftspec.simulate(planned)).figures
    predicted = planned.plan.chosen.prediction.metrics.figures
    assert figures.tokens_per_s == pytest.approx(predicted.tokens_per_s, rel=0.1)
    assert len(swiftspec.simulate(planned, policy="autoregressive")) > 0


@pytest.mark.parametrize(
    ("sentence", "arguments"),
    [
        ("deployment is missing; without it a plan needs a profile and a trace", {}),
        ("target and draft are missing", {"deployment": H800}),
        ("dataset is 'nothing'", PAIR | {"dataset": "nothing"}),
        ("policy is 'x'", PAIR | {"options": swiftspec.SearchOptions(policy="x")}),
        ("draft is llama-2-7b", PAIR | {"draft": "llama-2-7b"}),
    ],
)
def test_a_mistake_is_one_sentence_naming_the_field(sentence: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=sentence):
        swiftspec.plan(**arguments)  # type: ignore[arg-type]  # on purpose


def test_devices_that_are_unknown_are_named() -> None:
    with pytest.raises(ValueError, match=r"^device is 'h900'; did you mean"):
        swiftspec.Deployment(device="h900", num_devices=2)


def test_a_pair_is_profiled_traced_planned_and_validated(tmp_path: Path) -> None:
    pair = write_pair(tmp_path, architecture="llama", vocab_size=97)
    target, draft = (str(write_printable_tokenizer(directory)) for directory in pair)
    texts = ["def main():", "import os"]
    with brief_profiles():
        profile = swiftspec.profile(target, draft, dtype="fp32", num_devices=1)
    trace = swiftspec.trace(target, draft, texts, dtype="fp32", max_new_tokens=16)
    planned = swiftspec.plan(profile=profile, trace=trace, options=ONE_JOB)
    report = swiftspec.validate(planned, texts, policies=["autoregressive"], max_new_tokens=16)
    assert {policy.policy for policy in report.policies} >= {"autoregressive", planned.plan.chosen.policy}
    assert report.num_prompts == 2


def test_importing_the_package_loads_nothing_heavy() -> None:
    command = "import sys, swiftspec; swiftspec.Deployment; assert not {'torch', 'simpy', 'typer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", command], check=True)
