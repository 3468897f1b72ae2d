"""A draft server that is started for another engine's, and ended after it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.external.server import ServerError, draft_server

WORDS = ("swiftspec", "serve", "--role", "draft", "--draft", "demo/draft", "--policy", "ssd", "--devices", "1")


def until_says(log: Path, sentence: str) -> None:
    until_s = time.monotonic() + 120
    while sentence not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < until_s
        time.sleep(0.1)


def check_for_a_while(check: Callable[[], None]) -> None:
    for _ in range(300):
        check()
        time.sleep(0.1)


def test_a_draft_server_is_there_while_it_is_wanted(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra `engine` is not installed")
    address, log = tmp_path / "draft", tmp_path / "draft.log"
    with draft_server((*WORDS, "--address", f"ipc://{address}"), log=log) as check:
        until_says(log, "Drafting at")
        check()
    assert "0 verdicts answered" in log.read_text()


def test_one_that_ends_at_once_says_why(tmp_path: Path) -> None:
    log = tmp_path / "draft.log"
    with draft_server(WORDS, log=log) as check:
        until_says(log, "--address")
        with pytest.raises(ServerError, match=r"the draft server has ended .*Missing option '--address'"):
            check_for_a_while(check)  # it has said so, and ends a little later


def test_without_words_there_is_none(tmp_path: Path) -> None:
    with draft_server((), log=tmp_path / "draft.log") as check:
        check()
    assert not list(tmp_path.iterdir())
