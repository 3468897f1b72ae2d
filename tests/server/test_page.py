"""The start page in a real browser, while a request runs."""

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.engine.conftest import two_cores
from tests.reports.html.test_browser import CHROMIUM
from tests.reports.html.test_browser import pytestmark as needs_chromium
from tests.server.running import Running

pytestmark = [two_cores, needs_chromium]
LONG: dict[str, Any] = {"prompt": "def add(a, b):\n", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


def seen(server: Running, profile: Path) -> str:
    """The page's document after a few seconds in the browser."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += ["--virtual-time-budget=4000", "--dump-dom", server.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_the_page_shows_what_runs(server: Running, tmp_path: Path) -> None:
    is_over = threading.Event()

    def keep_busy() -> None:
        while not is_over.is_set():
            server.json("/v1/completions", LONG)

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        page = seen(server, tmp_path / "profile")
    finally:
        is_over.set()
        thread.join()
    assert "ready, " in page
    assert '<b id="running">1</b>' in page
    assert "running, of 4" in page
    assert "<tr><td>" in page
    assert json.dumps(LONG["prompt"])[1:-1] not in page
