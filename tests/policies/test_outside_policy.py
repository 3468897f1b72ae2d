"""The package of docs/writing-a-policy.md, installed: planned, simulated, run and compared like a built-in policy."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import machine_profile, with_guesses
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.pairs import references, write_pair
from tests.policies.packages import install_of_page, listing
from tools.iid_trace import synthesise_trace

pytestmark = pytest.mark.extra("engine")

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ("def add(a, b):\n", "for i in range(10):")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder with a tiny pair of models and what was recorded of it, and an environment with the package."""

    folder: Path
    environment: dict[str, str]

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )

    def swiftspec(self, *arguments: str) -> str:
        """Output of a verb that must succeed."""
        done = self.python("-m", "swiftspec", *arguments)
        assert (done.returncode, "rror" in done.stderr) == (0, False), done.stderr
        return done.stdout

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("outside")
    installed = install_of_page(folder / "source", folder / "installed")
    pair = write_pair(folder, architecture="llama")
    for directory in pair:
        write_printable_tokenizer(directory)
    target, draft = references(pair)
    profile = machine_profile(num_devices=1).model_copy(update={"device": "cpu", "target": target, "draft": draft})
    profile.save(folder / "profile.json")
    trace = with_guesses(synthesise_trace((0.7, 0.12, 0.05, 0.02), prompt_lengths=(12, 20), num_tokens=12, seed=1))
    replace(trace, target=target, draft=draft).save(folder / "trace.npz")
    lines = [json.dumps({"id": str(number), "prompt": text}) for number, text in enumerate(TEXTS)]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    return Place(folder=folder, environment=environment)


FILES = ("--target", "target", "--draft", "draft", "--profile", "profile.json", "--trace", "trace.npz")


@pytest.fixture(scope="module")
def planned(place: Place) -> str:
    """Output of a plan for this policy alone."""
    options = ["--devices", "1", "--jobs", "1", "--policy", "settled_tree", "--out", "plan.json"]
    return place.swiftspec("plan", *FILES, *options)


def test_the_page_is_short_and_its_test_passes(place: Place) -> None:
    assert sum(1 for line in listing("settled_tree.py").splitlines() if line.strip()) <= 60
    (place.folder / "test_settled_tree.py").write_text(listing("test_settled_tree.py"), encoding="utf-8")
    done = place.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_settled_tree.py")
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout


def test_it_is_listed_with_its_package(place: Place) -> None:
    text = place.swiftspec("list", "policies", "--json", "policies.json")
    (line,) = (line for line in text.splitlines() if "settled_tree" in line)
    assert line.split()[:4] == ["settled_tree", "co-located", "settled-tree", "0.1"]
    content = place.read("policies.json")
    assert content["policies"][-1]["package"] == "settled-tree 0.1"
    assert content["policies"][-1]["shape"]["verify_rows"] == 8
    assert content["faults"] == []


def test_it_is_planned_with_its_fields_fitted_and_read_back(place: Place, planned: str) -> None:
    chosen = place.read("plan.json")["chosen"]
    assert (chosen["policy"], chosen["package"]) == ("settled_tree", "settled-tree 0.1")
    assert chosen["shape"]["draft_temperature"] != 1.0
    assert place.read("plan.json")["num_simulated"] > 2
    assert "Chosen: settled_tree 1 (verify_rows=" in planned
    assert "settled_tree" in place.swiftspec("simulate", "--plan", "plan.json", "--json", "simulated.json")
    assert place.read("simulated.json")["candidate"].startswith("settled_tree 1 (verify_rows=")


def test_its_page_is_a_sentence_without_the_package(place: Place, planned: str) -> None:
    bare = replace(place, environment={**place.environment, "PYTHONPATH": str(ROOT)})
    done = bare.python("-m", "swiftspec", "simulate", "--plan", "plan.json")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("swiftspec: error: plan.json: ")
    assert line.endswith("policy is 'settled_tree' of the package settled-tree 0.1, which is not installed")


def test_the_engine_runs_it(place: Place, planned: str) -> None:
    """That its output is the target's own is asserted below."""
    files = ["--plan", "plan.json", "--prompts", "prompts.jsonl", "--json", "run.json"]
    place.swiftspec("run", *files, "--max-new-tokens", "40")
    content = place.read("run.json")
    assert content["policy"] == "settled_tree"
    assert max(len(prompt["output_token_ids"]) for prompt in content["prompts"]) > 8


def test_it_is_compared_with_all_others_simulated_and_measured(place: Place) -> None:
    place.swiftspec("plan", *FILES, "--devices", "1", "--jobs", "1", "--out", "all.json")
    policies = ["--policies", "settled_tree,autoregressive", "--repeats", "1", "--json", "compared.json"]
    text = place.swiftspec("validate", "--plan", "all.json", "--prompts", "prompts.jsonl", *policies)
    rows = {line.split()[0] for line in text.splitlines() if line.startswith("  ")}
    assert {"settled_tree", "autoregressive"} <= rows
    everything = place.read("all.json")
    found = {candidate["policy"] for candidate in (everything["chosen"], *everything["alternatives"])}
    assert {"settled_tree", "serial_tree", "serial_chain", "autoregressive"} <= found
    measured = {policy["policy"]: policy for policy in place.read("compared.json")["policies"]}
    assert measured["settled_tree"]["measured"]["tokens_per_s"] > 0
    assert measured["settled_tree"]["identical_output"]
