"""The page in headless Chromium: nothing is cut off on a phone, all text can be read in both schemes, it prints.

Chromium is looked for under its usual names, or where SWIFTSPEC_CHROMIUM says. The page has no script of its own; one
that measures is put around it.
"""

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from tests.reports.html.test_page import PAGES, schemes

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chromium-headless-shell",
    "chrome-headless-shell",
)
CHROMIUM = os.environ.get("SWIFTSPEC_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no Chromium: SWIFTSPEC_CHROMIUM is not set, none of {', '.join(NAMES)} is on the path"
)
pytestmark = [pytest.mark.extra("plots"), needs_chromium]

WIDTHS_PX = (360, 768, 1280)  # a phone, a tablet, a desk
DARK = "--blink-settings=preferredColorScheme=0"

# Reads the page in a frame: what sticks out of it, and the contrast of every piece of text.
MEASURE = """
<script>
function rgb(colour) { return (colour.match(/[0-9.]+/g) || []).map(Number); }
function luminance(colour) {
  const linear = rgb(colour).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
function ground(node, view) {
  for (; node; node = node.parentElement) {
    const colour = rgb(view.getComputedStyle(node).backgroundColor);
    if (colour.length == 3 || colour[3] > 0) return view.getComputedStyle(node).backgroundColor;
  }
  return "rgb(255, 255, 255)";
}
function measure(frame) {
  const view = frame.contentWindow, page = frame.contentDocument, found = {};
  found.width = page.documentElement.scrollWidth;
  found.dark = view.matchMedia("(prefers-color-scheme: dark)").matches;
  found.paper = view.getComputedStyle(page.body).backgroundColor;
  found.outside = [...page.body.querySelectorAll("*")].filter(node => !node.closest(".scroll"))
    .filter(node => node.getBoundingClientRect().right > page.documentElement.clientWidth + 1)
    .map(node => node.outerHTML.slice(0, 80));
  found.faint = [];
  found.texts = 0;
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || node.closest("title, style")) continue;
    const style = view.getComputedStyle(node);
    const pair = [luminance(node.closest("svg") ? style.fill : style.color), luminance(ground(node, view))];
    const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    found.texts += 1;
    if (contrast < 4.5) found.faint.push(walker.currentNode.data + " " + contrast.toFixed(2));
  }
  frame.nextElementSibling.textContent = JSON.stringify(found);
}
</script>
"""


def browse(*arguments: str, folder: Path) -> str:
    """Run headless Chromium once; what it wrote to stdout."""
    assert CHROMIUM is not None
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000"]
    command = [CHROMIUM, *fixed, f"--user-data-dir={folder / 'browser'}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(page: str, folder: Path) -> str:
    """The address of a page in a file."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    return path.as_uri()


def measured(page: str, folder: Path, *, dark: bool) -> dict[int, dict[str, Any]]:
    """Results of MEASURE in frames of several widths, by width."""
    frames = "".join(
        f'<iframe style="width:{width_px}px;height:800px;border:0" onload="measure(this)" srcdoc="{escape(page)}">'
        "</iframe><pre></pre>"
        for width_px in WIDTHS_PX
    )
    harness = f'<!DOCTYPE html><meta charset="utf-8">{MEASURE}{frames}'
    dom = browse(*([DARK] if dark else []), "--dump-dom", written(harness, folder), folder=folder)
    found = [json.loads(unescape(text)) for text in re.findall(r"</iframe><pre>(.+?)</pre>", dom, re.DOTALL)]
    return dict(zip(WIDTHS_PX, found, strict=True))


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_sticks_out_and_all_text_can_be_read(name: str, dark: bool, tmp_path: Path) -> None:
    for width_px, found in measured(PAGES[name](), tmp_path, dark=dark).items():
        assert found["dark"] == dark
        assert found["texts"] > 100
        assert found["width"] <= width_px
        assert (width_px, found["outside"], found["faint"]) == (width_px, [], [])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_painted_in_the_readers_scheme(scheme: str, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    arguments = [
        f"--screenshot={picture}",
        f"--window-size={WIDTHS_PX[-1]},2000",
        written(PAGES["composed"](), tmp_path),
    ]
    browse(*([DARK] if scheme == "dark" else []), *arguments, folder=tmp_path)
    pixels = (imread(picture)[..., :3] * 255).round().astype(int)
    paper = [int(schemes()[scheme]["paper"][start : start + 2], 16) for start in (1, 3, 5)]
    assert pixels.shape[1] == WIDTHS_PX[-1]
    assert pixels[2, 2].tolist() == paper
    inked = np.abs(pixels - paper).sum(axis=-1) > 30
    assert 0.01 < inked.mean() < 0.5


@pytest.mark.parametrize("name", PAGES)
def test_page_prints_on_a_few_sheets(name: str, tmp_path: Path) -> None:
    printed = tmp_path / "page.pdf"
    browse(
        DARK, f"--print-to-pdf={printed}", "--no-pdf-header-footer", written(PAGES[name](), tmp_path), folder=tmp_path
    )
    content = printed.read_bytes()
    assert content.startswith(b"%PDF-")
    assert 1 <= len(re.findall(rb"/Type /Page\b", content)) <= 8
