import json
import tomllib
from pathlib import Path

import pytest

import swiftspec
import swiftspec.planner.search.evaluation  # now: what is imported within a pytester's run is let go of afterwards
import swiftspec.validation.measuring
from swiftspec.kernels.cpu_cache import cache_folders
from tests.builders import machine_profile
from tests.cli import samples
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.pairs import references, write_pair

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("def add(a, b):\n", "import os\n", "for i in range(10):")
TOO_FAST = 1e6  # tokens/s, which nothing reaches
CACHE = next(cache_folders()).parent  # now: a pytester has a home of its own


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with prompts and a plan for a tiny pair, of which swiftspec's speed is predicted far too high."""
    folder = tmp_path_factory.mktemp("planned")
    pair = write_pair(folder, architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    lines = (json.dumps({"id": f"text-{number}", "prompt": text}) for number, text in enumerate(TEXTS))
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    target, draft = references(pair)
    profile = machine_profile().model_copy(update={"device": "cpu", "target": target, "draft": draft})
    profile.save(folder / "profile.json")
    trace = swiftspec.trace(str(pair[0]), str(pair[1]), TEXTS, dtype="fp32", max_new_tokens=16)
    trace.save(folder / "trace.npz")
    chosen = samples.candidate("swiftspec", tokens_per_s=TOO_FAST, shape={"verify_rows": 4, "expand_rows": 2})
    plan = samples.plan(target=target, draft=draft, folder=folder)
    plan.model_copy(update={"chosen": chosen}).save(folder / "plan.json")
    return folder


@pytest.fixture
def suite(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of tests whose pytest finds the plugin as in an installed package: by the project's entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = [f"{name} = {module}" for name, module in project["entry-points"]["pytest11"].items()]
    installed = tmp_path / "site" / "installed_for_a_test-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-for-a-test\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("\n".join(["[pytest11]", *entries]))
    pytester.syspathinsert(installed.parent)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # in which pytest-benchmark stores nothing
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))  # where the CPU kernels are, which take 5 s to compile
    pytester.makeini("[pytest]\naddopts = -p no:hypothesispytest")  # which would load hypothesis anew in every run
    return pytester
