"""Planning without the packages of extras, and without Linux; and what is said where they are needed."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PACKAGES = sorted({"transformers", "triton"}.union(*EXTRAS.values()))
RECORDED = ROOT / "swiftspec/profiles/demo-zen4-2-cores"
PAIR = ["--target", "llama-3-70b", "--draft", "llama-3.2-3b", "--device", "h800-sxm", "--devices", "8"]
DEMO = ["--target", "demo/target", "--draft", "demo/draft"]
MEASURED = [*DEMO, "--profile", str(RECORDED / "profile.json"), "--inflate", "layers=48"]
TRACE = RECORDED / "trace.npz"
NEEDS_EXTRA = (
    *("swiftspec.__main__", "swiftspec.engine", "swiftspec.kernels", "swiftspec.profiler", "swiftspec.pytest_plugin"),
    *("swiftspec.reports.figures", "swiftspec.server", "swiftspec.studies.latency_law.figure"),
    "swiftspec.validation.load",
)


def run(*arguments: object, system: str = "linux") -> subprocess.CompletedProcess[str]:
    """A verb on a machine without any extra's packages."""
    command = [sys.executable, "-m", "tests.cli.lacking", system, ",".join(PACKAGES), *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def succeeds(*arguments: object, system: str = "linux") -> str:
    done = run(*arguments, system=system)
    assert done.returncode == 0, done.stderr  # which has progress, too
    return done.stdout


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planned") / "plan.json"
    succeeds(
        "plan", *PAIR, "--policy", "serial_chain", "--jobs", 1, "--out", path, "--report", path.with_suffix(".html")
    )
    return path


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_a_plan_is_the_same_on_other_systems(plan_file: Path, tmp_path: Path, system: str) -> None:
    out, page = tmp_path / "plan.json", tmp_path / "plan.html"
    options = ["--policy", "serial_chain", "--jobs", 1, "--out", out, "--report", page]
    succeeds("plan", *PAIR, *options, system=system)
    here, there = (json.loads(path.read_text()) for path in (plan_file, out))
    differing = {key for key in here if here[key] != there[key]}
    assert differing <= {"origin", "profile", "trace"}  # which name when, where and from which file
    assert page.stat().st_size > 10_000


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_a_plan_is_used_without_extras(plan_file: Path, system: str) -> None:
    assert "vllm serve" in succeeds("export", "--plan", plan_file, "--engine", "vllm", system=system)
    assert "tokens" in succeeds("simulate", "--plan", plan_file, system=system)
    assert "llama-3-70b" in succeeds("list", "models", system=system)


def test_drafts_are_compared_without_extras() -> None:
    options = ["--device", "h100", "--devices", 8, "--dtype", "fp8", "--load", "closed:1,2", "--jobs", 1]
    options += ["--draft", "eagle3"]
    assert "eagle" in succeeds("plan", "--target", "llama-3.3-70b", *options, system="darwin")


def test_measurements_are_planned_with_without_extras(tmp_path: Path) -> None:
    whole = AcceptanceTrace.load(TRACE)
    replace(whole, prompts=whole.prompts[::24]).save(tmp_path / "trace.npz")
    options = ["--devices", 1, "--jobs", 1, "--trace", tmp_path / "trace.npz"]
    assert "autoregressive" in succeeds("plan", *MEASURED, *options, system="darwin")


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
def test_what_is_missing_is_one_sentence_with_the_command_to_type(extra: str, command: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "x"}')
    names = {"new": tmp_path / "new", "plan": RECORDED / "plan.json", "prompts": prompts}
    done = run(*command.format(**names).split())
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
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
