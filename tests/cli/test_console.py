import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.cli import console


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _fresh() -> None:
    """As `main` begins: an earlier test may have written its data to stdout."""
    console.begin()


ESCAPE = "\x1b[31mred\x1b[0m"
TITLE = "\x1b]0;pwned\x07"
CLIPBOARD = "\x1b]52;c;cm0gLXJm\x1b\\"
HOSTILE = (
    f"{ESCAPE}{TITLE}{CLIPBOARD}\x9b2J\x9d0;c1\x9c\x08\x7f\rover\u202etxt.exe\u2066\u2028\ud800[bold]markup[/bold]"
)
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
OURS = re.compile("\x1b\\[[0-9;?]*[mKlhAG]|[\r]")  # what rich itself writes: colours, and moves of a progress bar


@pytest.mark.parametrize(
    "show",
    [
        console.error,
        console.note,
        console.say,
        console.stream,
        console.heading,
        lambda text: console.table(text, [text, "b"], [[text, text]]),
        lambda text: _work(text),
    ],
    ids=["error", "note", "say", "stream", "heading", "table", "progress"],
)
def test_text_of_others_does_not_steer_a_terminal(show: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "400")
    show(HOSTILE)
    shown = screen.getvalue()
    assert not HARMFUL.search(OURS.sub("", shown))
    assert "\x1b[31m" not in shown
    assert r"\x1b[31mred\x1b[0m\x1b]0;pwned\x07\x1b]52;c;cm0gLXJm" in shown
    assert r"\x9b2J" in shown
    assert r"\u202etxt.exe" in shown
    assert "[bold]markup[/bold]" in shown


def _work(text: str) -> None:
    with console.progress("trace") as progress:
        progress(1, 2, text)


def test_a_result_in_a_pipe_is_exact(capsys: pytest.CaptureFixture[str]) -> None:
    exact = HOSTILE.replace("\ud800", "")
    console.stream(exact)
    assert capsys.readouterr().out == exact


def test_what_is_beside_the_result_is_harmless_in_a_pipe_too(capsys: pytest.CaptureFixture[str]) -> None:
    console.error(HOSTILE)
    console.note(HOSTILE)
    assert not HARMFUL.search(capsys.readouterr().err)


@pytest.mark.parametrize("text", ["plain", "tab\tand\nline", "naïve 東京 👩‍💻 می‌خواهم", "a\\x1b"])
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert console.harmless(text) == text
    assert console.harmless("dos\r\nline") == "dos\nline"


ROWS = [("swiftspec", "120.0"), ("serial_chain", "9.5")]


def test_table_is_aligned_plain_text_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    console.table("Speeds", ("policy", "tokens/s"), ROWS)
    assert capsys.readouterr().out == (
        "\nSpeeds\n  policy        tokens/s\n  swiftspec        120.0\n  serial_chain       9.5\n"
    )


def test_table_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    console.table("Speeds [bold]", ("policy", "tokens/s"), ROWS)
    assert "─" in screen.getvalue()
    assert "Speeds [bold]" in screen.getvalue()


def test_results_go_to_stdout_and_the_rest_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    console.say("result")
    console.stream("piece")
    console.note("aside")
    console.heading("Part")
    captured = capsys.readouterr()
    assert captured.out == "result\npiece\n== Part ==\n"
    assert captured.err == "aside\n"


def test_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    console.error(ValueError("first\n   second"))
    assert capsys.readouterr().err == "swiftspec: error: first second\n"


def test_short_work_says_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("trace") as progress:
        progress(1, 2, "prompt a")
    assert capsys.readouterr() == ("", "")


def test_long_work_says_now_and_then_where_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.5, 1.5, 2.0, 12.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with console.progress("trace") as progress:
        for done in range(4):
            progress(done, 4, f"prompt {done}")
    assert capsys.readouterr().err == "trace: 1/4 prompt 1 (2 s)\ntrace: 3/4 prompt 3 (12 s)\n"


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with console.progress("trace") as progress:
        progress(1, 2, "prompt [red]a")
    assert "prompt [red]a" in screen.getvalue()
    assert "1/2" in screen.getvalue()


def test_what_the_encoding_of_stdout_does_not_have_is_spelt_out() -> None:
    program = r"from swiftspec.cli import console; console.begin(); console.stream('na\xefve \u6771 \U0001f680\n')"
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
    assert shown == b"na\xefve \\u6771 \\U0001f680\n"


def test_an_abridged_result_is_whole_in_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.txt"
    with console.abridged(path, most_lines=5):
        console.say("first")
        console.table("Numbers", ("name", "value"), [(f"row {number}", str(number)) for number in range(9)])
    shown = capsys.readouterr().out.splitlines()
    whole = path.read_text().splitlines()
    assert shown[:-1] == whole[:5]
    assert shown[-1] == f"  .. {len(whole) - 5} more lines in {path}"
    assert whole[-1].split() == ["row", "8", "8"]


def test_a_short_result_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with console.abridged(tmp_path / "short.txt", most_lines=2):
        console.say("one")
        console.say("two")
    assert capsys.readouterr().out == (tmp_path / "short.txt").read_text() == "one\ntwo\n"
