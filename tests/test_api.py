"""The stages as functions: what a notebook does, without the command line."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import swiftspec
from swiftspec.artifacts.metrics import measure
from tests.cli.conftest import brief_profiles
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.pairs import write_pair

pytestmark = pytest.mark.extra("engine")

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
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


def test_another_split_than_the_plans_can_be_simulated(planned: swiftspec.Planned) -> None:
    one, two = (
        swiftspec.measure(swiftspec.simulate(planned, policy="autoregressive", split=(count,))) for count in (1, 2)
    )
    assert two.verify_s < one.verify_s
    with pytest.raises(ValueError, match=r"split is \(1, 1\); autoregressive needs a number of devices for target$"):
        swiftspec.simulate(planned, policy="autoregressive", split=(1, 1))


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
    with pytest.raises(ValueError, match=r"^device is 'h100-sxn'; did you mean h100-sxm\?"):
        swiftspec.Deployment(device="h100-sxn", num_devices=2)


def test_a_pair_is_profiled_traced_planned_and_validated_in_eight_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of a notebook, on a pair that is smaller than the bundled one, one core and fewer tokens."""
    pair = write_pair(tmp_path, architecture="llama", vocab_size=97)
    target, draft = (str(write_printable_tokenizer(directory)) for directory in pair)
    for name in ("trace", "validate"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "def main():"}\n{"prompt": "import os"}\n')
    notebook = json.loads((NOTEBOOKS / "reading_a_validation_report.ipynb").read_text(encoding="utf-8"))
    (code,) = re.findall(r"```python\n(.*?)```", "".join(notebook["cells"][0]["source"]), re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 8
    for theirs, ours in (
        ('("demo/target", "demo/draft")', repr((target, draft))),
        ('swiftspec.__path__[0] + "/demo/prompts"', repr(str(tmp_path))),
        ("swiftspec.profile(*pair", 'swiftspec.profile(*pair, num_devices=1, dtype="fp32"'),
        ("swiftspec.trace(*pair, ", "swiftspec.trace(*pair, max_new_tokens=16, prompts="),
    ):
        assert theirs in code
        code = code.replace(theirs, ours)
    found: dict[str, Any] = {}
    with brief_profiles():
        exec(code, found)
    report: swiftspec.Report = found["report"]
    assert {policy.policy for policy in report.policies} == set(found["planned"].plan.candidates)
    assert report.num_prompts == 2
    assert f"chosen: {report.chosen}, median error " in capsys.readouterr().out


def test_importing_the_package_loads_nothing_heavy() -> None:
    command = "import sys, swiftspec; swiftspec.Deployment; assert not {'torch', 'simpy', 'typer'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", command], check=True)
