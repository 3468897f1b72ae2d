import io
import sys

import pytest

from swiftspec import console


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


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
