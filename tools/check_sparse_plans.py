"""Plans of sparse targets that people deploy: seconds, the best draft by load, and draft tokens by clients.

    python -m tools.check_sparse_plans

Every command must end well within 15 s on two cores. Suffix decoding is compared, too, but is not among the best: the
text that stands in for yours repeats itself. Three values of c, the agreement of consecutive tokens about their
experts: the assumed one; 1, none; and 0, with which a sequence's further rows read no further experts.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MOST_S = 15.0
_CLIENTS = (1, 4, 16, 64)
_CORRELATIONS = (None, "1", "0")


@dataclass(frozen=True)
class Case:
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
CASES = (
    Case("deepseek-v3", "h200", 8, "fp8", _HEADS, "head_chain"),
    Case("deepseek-v3", "b200", 8, "fp8", _HEADS, "head_chain"),
    Case("kimi-k2", "h200", 8, "fp8", ("eagle3", "mtp"), "head_chain"),
    Case("kimi-k2", "b200", 8, "fp8", _HEADS, "head_chain"),
    Case("qwen3-235b-a22b", "h100", 8, "fp8", ("qwen3-0.6b",), "serial_chain"),
    Case("gpt-oss-120b", "h100", 1, "mxfp4", ("eagle3",), "head_chain"),
    Case("gpt-oss-120b", "h100", 8, "mxfp4", ("eagle3",), "head_chain"),
    Case("qwen3.5-397b-a17b", "h200", 8, "fp8", ("mtp",), "head_chain"),
)


def timed(arguments: list[str]) -> tuple[float, str]:
    """Seconds of a command; and the sentence with which it failed, or nothing."""
    begun_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "swiftspec", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    error = (done.stderr.strip().splitlines() or ["failed"])[-1] if done.returncode else ""
    return time.perf_counter() - begun_s, error


def compared(case: Case, correlation: str | None, folder: Path) -> tuple[float, str, dict[str, Any]]:
    """Seconds, error and result of `swiftspec kinds`."""
    out = folder / "kinds.json"
    drafts = [flag for draft in case.drafts for flag in ("--draft", draft)]
    chosen = [] if correlation is None else ["--expert-correlation", correlation]
    loads = ",".join(str(clients) for clients in _CLIENTS)
    seconds, error = timed(["plan", *case.flags, *drafts, *chosen, "--load", f"closed:{loads}", "--json", str(out)])
    return seconds, error, {} if error else json.loads(out.read_text())


def planned(case: Case, folder: Path) -> tuple[float, str]:
    """Seconds and error of `swiftspec plan`."""
    out = folder / "plan.json"
    return timed(["plan", *case.flags, "--draft", case.drafts[0], "--policy", case.policy, "--out", str(out)])


def best_by_load(found: dict[str, Any]) -> list[str]:
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


def main() -> int:
    is_good = True
    header = ["target", "devices", "c", "kinds, s", "plan, s", *(f"{clients}" for clients in _CLIENTS)]
    print("| " + " | ".join(header) + " |", "|---" * len(header) + "|", sep="\n")
    with tempfile.TemporaryDirectory() as name:
        for case in CASES:
            plan_s, plan_error = planned(case, Path(name))
            for correlation in _CORRELATIONS:
                seconds, error, found = compared(case, correlation, Path(name))
                is_first = correlation is None
                is_good &= not error and seconds <= _MOST_S and not plan_error and plan_s <= _MOST_S
                row = [f"{case.target} {case.quant}", f"{case.devices} {case.device}", correlation or "assumed"]
                row += [f"{seconds:.1f}", (plan_error or f"{plan_s:.1f}") if is_first else ""]
                print("| " + " | ".join([*row, *([error] if error else best_by_load(found))]) + " |", flush=True)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
