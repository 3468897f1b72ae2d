"""Planning without the packages of extras, and without Linux; and what is said where they are needed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.errors import EXTRAS
from tests.cli.lacking import ROOT, Machine, machine

PACKAGES = sorted({"transformers", "triton"}.union(*EXTRAS.values()))
RECORDED = ROOT / "swiftspec/profiles/demo-zen4-2-cores"
PAIR = ["--target", "llama-3-70b", "--draft", "llama-3.2-3b", "--device", "h800-sxm", "--devices", "4"]
DEMO = ["--target", "demo/target", "--draft", "demo/draft"]
MEASURED = [*DEMO, "--profile", str(RECORDED / "profile.json"), "--inflate", "layers=48"]
TRACE = RECORDED / "trace.npz"
NEEDS_EXTRA = (
    *("swiftspec.__main__", "swiftspec.engine", "swiftspec.kernels", "swiftspec.profiler", "swiftspec.pytest_plugin"),
    *("swiftspec.reports.figures", "swiftspec.server", "swiftspec.studies.latency_law.figure"),
    *("swiftspec.drafter", "swiftspec.validation.load"),
)


@pytest.fixture(scope="module")
def machines() -> Iterator[dict[str, Machine]]:
    """Without any extra's packages, by the system."""
    with ExitStack() as stack:
        yield {system: stack.enter_context(machine(system, PACKAGES)) for system in ("linux", "darwin", "win32")}


def succeeds(machine: Machine, *arguments: object) -> str:
    done = machine.run(*arguments)
    assert done.exit_code == 0, done.err  # which has progress, too
    return done.out


def planned(machine: Machine, folder: Path) -> Path:
    out = folder / "plan.json"
    page = out.with_suffix(".html")
    succeeds(machine, "plan", *PAIR, "--policy", "serial_chain", "--jobs", 1, "--out", out, "--report", page)
    assert page.stat().st_size > 10_000
    return out


@pytest.fixture(scope="module")
def plan_file(machines: dict[str, Machine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planned(machines["linux"], tmp_path_factory.mktemp("planned"))


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_plan_is_the_same_on_other_systems(
    machines: dict[str, Machine], plan_file: Path, tmp_path: Path, system: str
) -> None:
    here, there = (json.loads(path.read_text()) for path in (plan_file, planned(machines[system], tmp_path)))
    differing = {key for key in here if here[key] != there[key]}
    assert differing <= {"origin", "profile", "trace"}  # which name when, where and from which file


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_a_plan_is_used_without_extras(machines: dict[str, Machine], plan_file: Path, system: str) -> None:
    assert "vllm serve" in succeeds(machines[system], "export", "--plan", plan_file, "--engine", "vllm")
    assert "tokens" in succeeds(machines[system], "simulate", "--plan", plan_file)
    assert "llama-3-70b" in succeeds(machines[system], "list", "models")


def test_drafts_are_compared_without_extras(machines: dict[str, Machine]) -> None:
    options = ["--device", "h100", "--devices", 1, "--dtype", "fp8", "--load", "closed:1,2", "--jobs", 1]
    options += ["--draft", "eagle3"]
    assert "eagle" in succeeds(machines["darwin"], "plan", "--target", "llama-3.1-8b", *options)


def test_measurements_are_planned_with_without_extras(machines: dict[str, Machine], tmp_path: Path) -> None:
    whole = AcceptanceTrace.load(TRACE)
    replace(whole, prompts=whole.prompts[::24]).save(tmp_path / "trace.npz")
    options = ["--devices", 1, "--jobs", 1, "--trace", tmp_path / "trace.npz", "--policy", "serial_tree"]
    assert "serial_tree" in succeeds(machines["darwin"], "plan", *MEASURED, *options)


# Verb and flags that need an extra, by the extra; {new} is a new file, {plan} a plan, {prompts} prompts.
NEEDING = {
    "engine": (
        f"profile {' '.join(DEMO)} --out {{new}}",
        f"trace {' '.join(DEMO)} --prompts {{prompts}} --out {{new}}",
        "run --plan {plan} --prompt x",
        "run --plan {plan} --prompt x --ray auto",
        "validate --plan {plan} --prompts {prompts}",
        "serve --plan {plan}",
        f"trace {' '.join(DEMO)} --prompts {{prompts}} --inflate layers=12 --save-inflated {{new}} --out {{new}}.npz",
        "demo --dir {new}",
        "run --new-secret {new}",
        "workload --requests 2 --arrivals poisson:1 --prompts {prompts} --tokenizer demo/target --output-tokens fixed:7"
        " --out {new}",
    ),
    "plots": (
        "simulate --plan {plan} --plot {new}.png",
        "study backtest --plot {new}.png",
        f"plan {' '.join(MEASURED)} --trace {TRACE} --plot {{new}}.png",
    ),
}


@pytest.mark.parametrize(("extra", "command"), [(extra, line) for extra, lines in NEEDING.items() for line in lines])
def test_what_is_missing_is_one_sentence_with_the_command_to_type(
    machines: dict[str, Machine], extra: str, command: str, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x"}')
    names = {"new": tmp_path / "new", "plan": RECORDED / "plan.json", "prompts": prompts}
    done = machines["linux"].run(*command.format(**names).split())
    assert (done.exit_code, done.out) == (2, "")
    (sentence,) = done.err.splitlines()
    assert sentence.endswith(f": pip install 'swiftspec-llm[{extra}]'")
    assert f" needs {', '.join(EXTRAS[extra])}" in sentence
    assert list(tmp_path.iterdir()) == [prompts]


def test_modules_of_planning_need_no_extra() -> None:
    """All but the engine's own, what measures or serves with it, and figures."""
    code = f"""
from importlib import import_module
from pkgutil import walk_packages
import swiftspec
from tests.cli.lacking import lack
lack({PACKAGES})
for module in walk_packages(swiftspec.__path__, "swiftspec."):
    if not module.name.startswith({NEEDS_EXTRA}):
        import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
