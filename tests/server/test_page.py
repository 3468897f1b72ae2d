"""The start page in a real browser, while a request runs."""

import json
import re
import subprocess
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import urlopen

from tests.engine.conftest import two_cores
from tests.reports.html.test_browser import CHROMIUM, needs_chromium
from tests.server.running import Running

pytestmark = [two_cores, needs_chromium]
LOOK_AFTER_S = 2.5
LONG: dict[str, Any] = {"prompt": "def add(a, b):\n", "max_tokens": 200, "temperature": 0, "ignore_eos": True}


class Proxy(BaseHTTPRequestHandler):
    """Passes the page and its events on. An image that takes a while keeps the browser from looking too early."""

    server_url: ClassVar[str]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/late":
            time.sleep(LOOK_AFTER_S)
            self.send_error(404)
            return
        with suppress(OSError), urlopen(self.server_url + self.path) as answer:
            self.send_response(200)
            self.send_header("content-type", answer.headers["content-type"])
            self.end_headers()
            while line := answer.readline():
                self.wfile.write(line)
                self.wfile.flush()
            if self.path == "/":
                self.wfile.write(b'<img src="late">')


def seen(server: Running, folder: Path) -> tuple[str, Path]:
    """The page's document after a while in the browser, and a picture of it."""
    assert CHROMIUM is not None
    Proxy.server_url = server.url
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    picture = folder / "page.png"
    try:
        url = f"http://127.0.0.1:{proxy.server_port}/"
        command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
        command += ["--window-size=1000,800", f"--screenshot={picture}", "--dump-dom", url]
        page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
    return page, picture


def test_the_page_shows_what_runs(server: Running, tmp_path: Path) -> None:
    is_over = threading.Event()

    def keep_busy() -> None:
        while not is_over.is_set():
            server.json("/v1/completions", LONG)

    threads = [threading.Thread(target=keep_busy) for _ in range(2)]  # one is between two requests now and then
    for thread in threads:
        thread.start()
    try:
        page, _ = seen(server, tmp_path)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    assert "ready, " in page
    assert re.search(r'<b id="running">[12]</b>', page)
    assert "running, of 4" in page
    assert "<tr><td>" in page
    assert json.dumps(LONG["prompt"])[1:-1] not in page
