"""Speed of vLLM with a draft server, beside its own methods on the same cores: `--only drafter-speed`.

vLLM alone has both cores, or one as it has beside a draft server. Every server is started twice, in one order and then
in the other, so that a machine that becomes slower meanwhile is slower for all of them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from swiftspec.api.load_testing import load_test
from swiftspec.cli import console
from swiftspec.export.command import Command
from swiftspec.external.server import RunningServer
from swiftspec.loadtest.client import ServerClient
from tests.external.drafter import Setting

__all__ = ["speeds"]

CLIENTS = {1: 10, 4: 28, 8: 40}  # and their requests
NUM_TOKENS = 96


class Cell(NamedTuple):
    """One load on one server: seconds a token, tokens a step of a request, and all tokens a second."""

    tpot_s: float
    tokens_per_step: float
    tokens_per_s: float


def speeds(
    setting: Setting, own: Mapping[str, tuple[Command, str]], policies: Mapping[str, str], prompts: Path
) -> dict[str, dict[str, Cell]]:
    """Cells by server and clients.

    own: vLLM's commands, and the cores that they have. policies: shapes of those that the draft server runs.
    """
    loads = {clients: _load(setting.folder, clients, prompts) for clients in CLIENTS}
    names = [*own, *policies]
    measured: dict[tuple[str, int], list[Cell]] = {}
    for name in [*names, *reversed(names)]:
        with ExitStack() as stack:
            if name in own:
                command, cores = own[name]
                server = stack.enter_context(setting.vllm_alone(command, cores=cores))
            else:
                stack.enter_context(setting.draft_server(name, shape=policies[name]))
                server = stack.enter_context(setting.vllm(f"speed-{name}"))
            _cell(server, loads[1], prompts, limit=2)
            for clients, load in loads.items():
                cell = _cell(server, load, prompts)
                measured.setdefault((name, clients), []).append(cell)
                console.say(f"{name}, {clients} clients: {1e3 * cell.tpot_s:.1f} ms, {cell.tokens_per_step:.2f} tokens")
    found = {
        name: {str(clients): Cell(*map(fmean, zip(*measured[name, clients], strict=True))) for clients in CLIENTS}
        for name in names
    }
    rows = [(name, *map(_shown, cells.values())) for name, cells in found.items()]
    console.table("TPOT, tokens of a step, and all tokens", ("server", *(f"{each} clients" for each in CLIENTS)), rows)
    return found


def _shown(cell: Cell) -> str:
    return f"{1e3 * cell.tpot_s:.1f} ms, {cell.tokens_per_step:.2f}, {cell.tokens_per_s:.0f}/s"


def _load(folder: Path, clients: int, prompts: Path) -> Path:
    out = folder / f"speed-{clients}.json"
    words = ["--arrivals", f"closed:{clients}", "--requests", str(CLIENTS[clients]), "--prompts", str(prompts)]
    words += ["--tokenizer", "demo/target"]
    words += ["--output-tokens", f"fixed:{NUM_TOKENS}", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "swiftspec", "workload", *words], check=True, stdout=subprocess.DEVNULL)
    return out


def _cell(server: RunningServer, load: Path, prompts: Path, *, limit: int | None = None) -> Cell:
    client = ServerClient(server.url)
    before = client.reading()
    found = load_test(server.url, load, prompts, limit=limit)
    counted = client.reading().since(before)
    tokens = sum(request.num_tokens for request in found.requests)
    steps = tokens - counted.count("spec_decode_num_accepted_tokens")
    assert not found.failures
    return Cell(found.metrics.tpot_s.mean, tokens / steps, found.metrics.output_throughput)
