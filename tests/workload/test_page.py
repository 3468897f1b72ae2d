"""docs/workloads.md: its example runs, its file can be read, and its tables have every name."""

import doctest
import json
import re
import shlex
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from swiftspec.artifacts import distributions
from swiftspec.artifacts import workload as artifact
from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.workload import Workload
from swiftspec.cli.app import main
from swiftspec.cli.settings import DRAWN
from swiftspec.workload import FORMATS, Prefixes, generate
from tests.workload.samples import workload

PAGE = (Path(__file__).parents[2] / "docs/workloads.md").read_text(encoding="utf-8")


def block(after: str) -> str:
    """The indented block after a line."""
    indented = re.match(r"\n*((?: {4}.*\n|\n)+)", PAGE.partition(after)[2])
    assert indented is not None
    return textwrap.dedent(indented[1])


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def named(heading: str) -> list[str]:
    """Names in the first column of a section's table."""
    return re.findall(r"^\| `([a-z_]+)", section(heading), re.MULTILINE)


def test_the_file_on_the_page_can_be_read() -> None:
    text = PAGE.partition("```json\n")[2].partition("```")[0]
    made = Workload.parse(json.loads(text), source="docs/workloads.md")
    assert list(json.loads(made.to_json())) == list(json.loads(text))
    assert json.loads(made.to_json())["requests"] == json.loads(text)["requests"]


def test_the_first_command_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command, _, printed = block("so that both see the same load.\n").partition("\n\n")
    assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0
    said = capsys.readouterr().out
    assert [line for line in printed.splitlines() if line.strip(" .")] == said.splitlines()[:3]


def test_the_command_of_conversations_prints_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command, _, printed = block("## Prompts that begin alike\n").partition("\n\n")
    assert main(shlex.split(command.replace("\\\n", " "))[1:]) == 0
    assert printed.strip() in capsys.readouterr().out
    options = set(named("Prompts that begin alike"))
    assert options == {*Prefixes.__dataclass_fields__} == {*DRAWN}


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block("The same from Python:\n"), "docs/workloads.md", "exec"), names)
    assert Workload.load("workload.json") == names["made"]
    faster = names["faster"]
    assert isinstance(faster, Workload)
    assert faster.rate == 4.0


def test_the_tables_have_every_name() -> None:
    assert set(named("Arrivals")) == {process for process in Process if Arrivals.parameters[process]}
    assert set(named("Lengths")) == {each for each in Distribution if Lengths.parameters[each]}
    assert named("Load traces") == list(FORMATS)


@pytest.mark.parametrize("module", [distributions, artifact, generate])
def test_examples_in_docstrings_run(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    workload().save("workload.json")
    results = doctest.testmod(module)
    assert (results.failed, results.attempted > 0) == (0, True)
