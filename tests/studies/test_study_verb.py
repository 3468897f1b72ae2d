"""`swiftspec study`: the one way to the studies, and the verbs that they once were."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.validation.published import DATA
from tests.test_architecture import LIBRARY, Module, layering_violations, room_of, stranger_violations

STUDIES = ("backtest", "adaserve", "atts", "latency", "tenants", "blockllm")
OLD_VERBS = {"backtest": "backtest", "atts": "atts", "sweep": "latency"}
MODULES = "[name for name in sys.modules if name.startswith('swiftspec.studies')]"
HEAVY = "sorted({'torch', 'transformers', 'numpy', 'simpy', 'matplotlib', 'rich'} & sys.modules.keys())"


def printed_after(arguments: list[str], expression: str) -> str:
    """The expression's value after a run of the command line, in a process of its own."""
    code = f"import sys; from swiftspec.cli.app import main; main(sys.argv[1:]); print({expression})"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_help_lists_every_study_in_a_line_and_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "--help"]) == 0
    text = capsys.readouterr().out
    listed = [line.split(maxsplit=1) for line in text.split("Commands:")[1].splitlines() if line.strip()]
    assert tuple(name for name, _ in listed) == STUDIES
    assert all(line.endswith(".") and "..." not in line for _, line in listed)
    assert re.search(r"Example:\n    swiftspec study ", text)
    assert main(["study"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("study", STUDIES)
def test_help_of_a_study_has_its_options_and_an_example(study: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", study, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: swiftspec study {study} [OPTIONS]")
    assert re.search(rf"Examples?:\n    swiftspec study {study} ", text)
    first_line = text.split("\n\n")[1].strip()
    assert main(["study", "--help"]) == 0
    assert first_line in capsys.readouterr().out


@pytest.mark.parametrize("study", STUDIES)
def test_help_of_a_study_loads_nothing_heavy(study: str) -> None:
    assert printed_after(["study", study, "--help"], HEAVY) == "[]"


def test_studies_are_imported_by_one_module_and_when_one_is_asked_for() -> None:
    found = {
        (module.name, imported.deferred)
        for module in LIBRARY.values()
        for imported in module.imports
        if room_of(imported.target) == "studies" != room_of(module.name)
    }
    assert found == {("swiftspec.cli.study", True)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("swiftspec.cli.drafts", "def run():\n    from swiftspec.studies.backtest.rows import Row"),
        ("swiftspec.cli.app", "def run():\n    from swiftspec.studies.backtest.rows import Row"),
        ("swiftspec.api.planning", "from swiftspec.studies import latency_law"),
        ("swiftspec.studies.atts.driver", "from swiftspec.cli.app import main"),
    ],
)
def test_another_way_to_or_from_a_study_is_found(name: str, text: str) -> None:
    module = Module(name=name, text=text)
    assert [*layering_violations(module), *stranger_violations(module)]


@pytest.mark.parametrize("arguments", [[], ["plan", "--help"], ["study", "--help"], ["list", "models"]])
def test_whoever_asks_for_no_study_loads_none(arguments: list[str]) -> None:
    assert printed_after(arguments, MODULES) == "[]"


@pytest.mark.parametrize(("verb", "study"), OLD_VERBS.items())
def test_an_old_verb_is_hidden_and_says_its_new_name_once(
    verb: str, study: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    assert f"\n  {verb} " not in capsys.readouterr().out
    assert main(["study", study, "--help"]) == 0
    text = capsys.readouterr().out
    assert main([verb, "--help"]) == 0
    said = capsys.readouterr()
    assert said.out == text
    assert said.err == f"swiftspec: `swiftspec {verb}` is now `swiftspec study {study}`\n"


def test_an_old_verb_fails_as_the_study_does(fails: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    for verb, arguments in (("atts", ["--budget", "2"]), ("sweep", ["--plan", "/nowhere.json"]), ("backtest", ["--x"])):
        sentence = fails("study", OLD_VERBS[verb], *arguments)
        assert main([verb, *arguments]) == 2
        note, error = capsys.readouterr().err.splitlines()
        assert "is now" in note
        assert error == f"swiftspec: error: {sentence}"


def test_loads_of_the_old_backtest_are_those_of_validate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few, out, other = tmp_path / "few.csv", tmp_path / "backtest.json", tmp_path / "validate.json"
    few.write_text("\n".join((DATA / "serving.csv").read_text().splitlines()[:4]) + "\n")
    assert main(["backtest", "--loads", str(few), "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert main(["validate", "--loads", str(few), "--json", str(other)]) == 0
    assert capsys.readouterr().out == said
    assert json.loads(out.read_text()) == json.loads(other.read_text())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--at", "4.3"), "--at is '4.3'; expected some of 2.6, 2.8, 3"),
        (("--at", "2.6,many"), "--at is '2.6,many'; expected some of 2.6"),
        (("--at", ""), "--at is ''; expected some of 2.6"),
        (("--figure", "14", "--at", "2.6"), "--at is '2.6'; expected some of 4"),
        (("--figure", "9"), "--figure is 9; expected one of 8, 10, 11, 14"),
        (("--model", "gpt-2"), "--model is 'gpt-2'; expected one of llama-3.1-70b, qwen2.5-32b"),
    ],
)
def test_points_that_are_not_published_are_refused(
    arguments: tuple[str, ...], sentence: str, fails: Callable[..., str]
) -> None:
    assert fails("study", "adaserve", *arguments).startswith(sentence)
