"""Plans of sparse targets that people deploy: the best draft by load, and the seconds that a plan takes.

Suffix decoding is compared, too, but is not among the best: the text that stands in for yours repeats itself. Three
values of c, the agreement of consecutive tokens about their experts: the assumed one; 1, none; and 0, with which a
sequence's further rows read no further experts. Criteria: every command succeeds, within 15 s on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from swiftspec.cli import console
from tools.checks.criterion import Criterion, at_most

_MOST_S, _GIVEN_UP_S = 15.0, 300.0
_CLIENTS = (1, 4, 16, 64)
_CORRELATIONS = (None, "1", "0")


@dataclass(frozen=True)
class _Case:
    """A target with its drafts on some devices; `policy` is planned with the first of these."""

    target: str
    device: str
    devices: int
    quant: str
    drafts: tuple[str, ...]
    policy: str

    @property
    def flags(self) -> list[str]:
        """Flags that both verbs have."""
        where = ["--device", self.device, "--devices", str(self.devices), "--dtype", self.quant]
        return ["--target", self.target, *where]


_HEADS = ("mtp", "eagle3")
_CASES = (
    _Case("deepseek-v3", "h200", 8, "fp8", _HEADS, "head_chain"),
    _Case("deepseek-v3", "b200", 8, "fp8", _HEADS, "head_chain"),
    _Case("kimi-k2", "h200", 8, "fp8", ("eagle3", "mtp"), "head_chain"),
    _Case("kimi-k2", "b200", 8, "fp8", _HEADS, "head_chain"),
    _Case("qwen3-235b-a22b", "h100", 8, "fp8", ("qwen3-0.6b",), "serial_chain"),
    _Case("gpt-oss-120b", "h100", 1, "mxfp4", ("eagle3",), "head_chain"),
    _Case("gpt-oss-120b", "h100", 8, "mxfp4", ("eagle3",), "head_chain"),
    _Case("qwen3.5-397b-a17b", "h200", 8, "fp8", ("mtp",), "head_chain"),
)


def check(
    targets: Annotated[tuple[str, ...], "which ones, by default all"] = (),
) -> Iterator[Criterion]:
    """Plan every case, and compare its drafts under every load and agreement."""
    cases = [case for case in _CASES if not targets or case.target in targets]
    if not cases:
        known = ", ".join(dict.fromkeys(case.target for case in _CASES))
        raise ValueError(f"--targets is {','.join(targets)!r}; expected some of {known}")
    rows, seconds, failures = [], [], 0
    with tempfile.TemporaryDirectory() as name:
        for case in cases:
            title = f"{case.target} on {case.devices} {case.device}"
            plan_s, error = _planned(case, Path(name))
            seconds.append((title, plan_s))
            failures += bool(error)
            rows.append((title, "", f"{plan_s:.1f}", error or "planned", *[""] * (len(_CLIENTS) - 1)))
            for correlation in _CORRELATIONS:
                kinds_s, error, found = _compared(case, correlation, Path(name))
                agreement = correlation or "assumed"
                seconds.append((f"{title}, c {agreement}", kinds_s))
                failures += bool(error)
                cells = [error, *[""] * (len(_CLIENTS) - 1)] if error else _best_by_load(found)
                rows.append(("", agreement, f"{kinds_s:.1f}", *cells))
    console.table(
        "Seconds, and tokens/s of a user without a draft -> with the best one, by clients",
        ("target", "c", "s", *map(str, _CLIENTS)),
        rows,
        num_text_columns=2,
    )
    yield at_most("commands that failed", failures, 0)
    yield at_most("slowest command", seconds, _MOST_S, "s")


def _timed(arguments: list[str]) -> tuple[float, str]:
    """Seconds of a command; and the sentence with which it failed, or nothing."""
    begun_s = time.perf_counter()
    command = [sys.executable, "-m", "swiftspec", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIVEN_UP_S)
    except subprocess.TimeoutExpired:
        return time.perf_counter() - begun_s, f"not done after {_GIVEN_UP_S:.0f} s"
    error = (done.stderr.strip().splitlines() or ["failed"])[-1] if done.returncode else ""
    return time.perf_counter() - begun_s, error


def _compared(case: _Case, correlation: str | None, folder: Path) -> tuple[float, str, dict[str, Any]]:
    """Seconds, error and result of `swiftspec plan` of all drafts, by load."""
    out = folder / "kinds.json"
    drafts = [flag for draft in case.drafts for flag in ("--draft", draft)]
    chosen = [] if correlation is None else ["--expert-correlation", correlation]
    loads = ",".join(str(clients) for clients in _CLIENTS)
    seconds, error = _timed(["plan", *case.flags, *drafts, *chosen, "--load", f"closed:{loads}", "--json", str(out)])
    return seconds, error, {} if error else json.loads(out.read_text())


def _planned(case: _Case, folder: Path) -> tuple[float, str]:
    """Seconds and error of `swiftspec plan`."""
    out = folder / "plan.json"
    return _timed(["plan", *case.flags, "--draft", case.drafts[0], "--policy", case.policy, "--out", str(out)])


def _best_by_load(found: dict[str, Any]) -> list[str]:
    """Plain speed; the fastest kind with a draft model or head, its K and its speed, for each load."""
    cells = []
    for clients in _CLIENTS:
        points = {
            kind["name"]: point
            for kind in found.get("kinds", ())
            for point in kind["points"]
            if point["clients"] == clients
        }
        plain = points.pop("none", None)
        points.pop("suffix", None)
        if plain is None or not points:
            cells.append("none fits" if plain is None else f"{plain['user_tokens_per_s']:.0f}, no draft fits")
            continue
        name = max(points, key=lambda one: float(points[one]["user_tokens_per_s"]))
        speed, plain_speed = points[name]["user_tokens_per_s"], plain["user_tokens_per_s"]
        cells.append(f"{plain_speed:.0f} -> {speed:.0f} {name} {points[name]['num_draft_tokens']}")
    return cells
