import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.version import __version__
from tests.test_architecture import ROOT

SECTION = r"\n(\w[\w ]*):\n((?:  .*\n)+)"
GROUPS = {
    "Measure": ("profile", "trace"),
    "Decide": ("plan", "simulate"),
    "Use": ("run", "serve", "export"),
    "Check": ("validate", "loadtest", "advise"),
    "Data": ("workload", "import", "list"),
    "Demonstrate and study": ("demo", "study"),
}
VERBS = tuple(verb for verbs in GROUPS.values() for verb in verbs)


def test_help_lists_every_verb_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("--help")[2]
    found = {heading: tuple(re.findall(r"^  (\w+)", rows, re.M)) for heading, rows in re.findall(SECTION, listed)}
    assert found == GROUPS
    assert "..." not in listed


def test_no_verb_is_a_call_for_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "\nMeasure:\n" in capsys.readouterr().out


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_an_example_and_json(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert re.search(rf"Examples?:\n    swiftspec {verb} ", text)
    assert ("--json FILE" in text) == (verb != "study"), "which has nothing to say"


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_loads_nothing_heavy(verb: str) -> None:
    code = (
        "import sys; from swiftspec.cli.app import main; main([sys.argv[1], '--help']);"
        "print(sorted({'torch', 'transformers', 'numpy', 'simpy', 'matplotlib', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, verb], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"swiftspec {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plann"], "No such command 'plann'. Did you mean 'plan'?"),
        (["plan"], "Missing option '--target'."),
        (["run", "--plan", "p", "--promt", "x"], "No such option: --promt (Possible options: "),
        (["run", "--plan", "p", "--seed", "x"], "--seed is 'x'; expected a valid integer"),
        (
            ["run", "--plan", "p", "--acceptance-method", "x"],
            "--acceptance-method is 'x'; expected one of follow, residual",
        ),
        (["validate", "--plan", "p", "--prompts", "f", "--repeats", "0"], "--repeats is '0'; expected at least 1"),
    ],
)
def test_misuse_is_one_sentence(fails: Callable[..., str], arguments: list[str], sentence: str) -> None:
    assert fails(*arguments).startswith(sentence)


def test_interrupt_anywhere_exits_130_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("swiftspec.cli.simulate.simulate", interrupted)
    assert main(["simulate", "--plan", "p"]) == 130
    assert capsys.readouterr() == ("", "swiftspec: interrupted\n")


def test_our_own_mistakes_are_not_called_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr("swiftspec.cli.simulate.simulate", broken)
    with pytest.raises(RuntimeError, match="ours"):
        main(["simulate", "--plan", "p"])


def test_traceback_of_a_users_mistake_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTSPEC_TRACEBACK", "1")
    with pytest.raises(ValueError, match="cannot be read"):
        main(["simulate", "--plan", "/nowhere/plan.json"])


def test_closed_pipe_ends_quietly() -> None:
    code = "import sys; from swiftspec.cli.app import main; sys.exit(main(['--help']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_without_a_reader_of_its_text_files_are_written_all_the_same(tmp_path: Path) -> None:
    """As in `swiftspec plan ... --report page.html | head -1`."""
    plan = ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores/plan.json"
    outputs = ["--timeline", tmp_path / "spans.json", "--json", tmp_path / "result.json"]
    command = [sys.executable, "-m", "swiftspec", "simulate", "--plan", plan, "--max-new-tokens", "8", *outputs]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*map(str, command)], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads((tmp_path / "result.json").read_text())["metrics"]["num_tokens"] > 0
    assert (tmp_path / "spans.json").exists()


def test_exit_code_and_stream_of_an_error_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "swiftspec", "simulate", "--plan", "/nowhere/plan.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "swiftspec: error: /nowhere/plan.json: cannot be read (No such file or directory)\n"
