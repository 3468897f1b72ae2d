"""Speed of vLLM with a draft server, beside its own methods on the same cores: `--only drafter-speed`.

For each size of target: profiles and predictions, written before anything of the table is measured, and then the
table. vLLM alone has both cores, or one as it has beside a draft server. Servers that draft are started twice, in one
order and then in the other, so that a machine that becomes slower meanwhile is slower for all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from swiftspec.api.load_testing import load_test
from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.artifacts.workload import Workload, WorkloadRequest
from swiftspec.cli import console
from swiftspec.engines.words import Method
from swiftspec.export.command import Command
from swiftspec.external.server import RunningServer
from swiftspec.loadtest.client import ServerClient
from swiftspec.planner.deployment import with_draft_server
from swiftspec.planner.under_load.measured_engine import MeasuredEngine
from swiftspec.planner.under_load.predictor import Predictor
from swiftspec.policies import Layout, Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.setup import Setup
from swiftspec.timing.latency import Provenance
from tests.external.drafted_vllm import Setting

CLIENTS = {1: 6, 4: 16, 8: 24}  # and their requests
NUM_TOKENS = 96
PROMPTS = Path("swiftspec/demo/prompts/validate.jsonl")


class Cell(NamedTuple):
    """One load on one server: seconds a token, tokens a step of a request, and all tokens a second."""

    tpot_s: float
    tokens_per_step: float
    tokens_per_s: float


def speeds(
    setting: Setting,
    own: Mapping[str, tuple[Command, str]],
    policies: Mapping[str, str],
    *,
    once: Collection[str] = (),
) -> dict[str, dict[str, Cell]]:
    """Cells by server and clients.

    own: vLLM's commands, and the cores that they have. policies: shapes of those that the draft server runs. once:
    servers that are started once only.
    """
    loads = {clients: _load(setting.folder, clients) for clients in CLIENTS}
    names = [*own, *policies]
    measured: dict[tuple[str, int], list[Cell]] = {}
    for name in [*names, *(name for name in reversed(names) if name not in once)]:
        with ExitStack() as stack:
            if name in own:
                command, cores = own[name]
                server = stack.enter_context(setting.vllm_alone(command, cores=cores))
            else:
                stack.enter_context(setting.draft_server(name, shape=policies[name]))
                server = stack.enter_context(setting.vllm(f"speed-{name}"))
            _cell(server, loads[1], limit=2)
            for clients, load in loads.items():
                cell = _cell(server, load)
                measured.setdefault((name, clients), []).append(cell)
                console.say(f"{name}, {clients} clients: {1e3 * cell.tpot_s:.1f} ms, {cell.tokens_per_step:.2f} tokens")
    found = {
        name: {str(clients): Cell(*map(fmean, zip(*measured[name, clients], strict=True))) for clients in CLIENTS}
        for name in names
    }
    rows = [(name, *map(_shown, cells.values())) for name, cells in found.items()]
    console.table("TPOT, tokens of a step, and all tokens", ("server", *(f"{each} clients" for each in CLIENTS)), rows)
    return found


def profiles(setting: Setting, name: str, cores: str) -> Profile:
    """vLLM's profile on some cores, measured now unless it was before."""
    out = setting.folder / f"{name}.json"
    if not out.exists():
        words = ["--engine", "vllm@0.32.0", "--python", setting.here.python or "", "--target", str(setting.target)]
        words += ["--draft", str(setting.draft), "--dtype", "fp32", "--minutes", "5", "--out", str(out)]
        words += ["--server-args", " ".join(setting.here.options)]
        _run("profile", *words, cores=cores)
    return Profile.load(out)


def draft_profile(setting: Setting) -> Profile:
    """The draft's, on this package's engine: the other model of the pair is in it and of no use."""
    out = setting.folder.parent / "drafts.json"
    if not out.exists():
        pair = ["--target", "demo/target", "--draft", str(setting.draft), "--dtype", "fp32", "--max-sequences", "8"]
        _run("profile", *pair, "--out", str(out))
    return Profile.load(out)


def traced(setting: Setting) -> AcceptanceTrace:
    """Acceptance of other prompts than those of the table. All sizes of the target write the same texts."""
    out = setting.folder.parent / "trace.npz"
    if not out.exists():
        pair = ["--target", "demo/target", "--draft", str(setting.draft), "--dtype", "fp32"]
        _run(
            "trace", *pair, "--prompts", "swiftspec/demo/prompts/trace.jsonl", "--num-prompts", "48", "--out", str(out)
        )
    return AcceptanceTrace.load(out)


def _run(*words: str, cores: str = "0-1") -> None:
    command = [sys.executable, "-m", "swiftspec", *words]
    subprocess.run(command, check=True, env={**os.environ, "VLLM_CPU_OMP_THREADS_BIND": cores})


def predicted(
    setting: Setting, served: Profile, drafts: Profile, trace: AcceptanceTrace, policies: Mapping[str, str]
) -> dict[str, dict[str, Cell]]:
    """The same cells as predicted.

    served, drafts: profiles of vLLM's cores and of the draft's. policies: shapes, by the name of a policy; only those
    with a draft server use the draft's core.
    """
    engine = MeasuredEngine.of(served)
    assert engine is not None
    round_s = engine.round_s(Method.DRAFT_SERVER)
    profile = with_draft_server(served, drafts, round_s=round_s, provenance=Provenance.MEASURED)
    predictor = Predictor(profile, trace, serving=MeasuredEngine.of(profile))
    found: dict[str, dict[str, Cell]] = {}
    for name, shape in policies.items():
        policy = _shaped(name, shape)
        roles = Role if policy.layout is Layout.DISAGGREGATED else (Role.TARGET,)
        found[name] = {}
        for clients in CLIENTS:
            workload = Workload.load(_load(setting.folder, clients))
            workload = workload.model_copy(update={"requests": tuple(map(_unnamed, workload.requests))})
            load = predictor.serve(
                Setup(policy=policy, degrees=dict.fromkeys(roles, 1)),
                workload,
                goal=Goal(classes=workload.classes),
                options=LoadOptions(),
            )
            later = sum(record.num_tokens - 1 for record in load.records)
            rounds = sum(len(record.commits_s) - 1 for record in load.records)
            found[name][str(clients)] = Cell(load.metrics.tpot_s.mean, later / rounds, load.metrics.output_throughput)
    return found


def _unnamed(request: WorkloadRequest) -> WorkloadRequest:
    """Without its prompt, which no trace has."""
    return request.model_copy(update={"prompt_id": None})


def _shaped(name: str, shape: str) -> Policy:
    fields = (each.split("=") for each in shape.split(",") if each)
    return make_policy(name, **{field: int(value) for field, value in fields})


def _shown(cell: Cell) -> str:
    return f"{1e3 * cell.tpot_s:.1f} ms, {cell.tokens_per_step:.2f}, {cell.tokens_per_s:.0f}/s"


def _load(folder: Path, clients: int) -> Path:
    out = folder / f"speed-{clients}.json"
    words = ["--arrivals", f"closed:{clients}", "--requests", str(CLIENTS[clients]), "--prompts", str(PROMPTS)]
    words += ["--tokenizer", "demo/target"]
    words += ["--output-tokens", f"fixed:{NUM_TOKENS}", "--out", str(out)]
    subprocess.run([sys.executable, "-m", "swiftspec", "workload", *words], check=True, stdout=subprocess.DEVNULL)
    return out


def _cell(server: RunningServer, load: Path, *, limit: int | None = None) -> Cell:
    client = ServerClient(server.url)
    before = client.reading()
    found = load_test(server.url, load, PROMPTS, limit=limit)
    counted = client.reading().since(before)
    tokens = sum(request.num_tokens for request in found.requests)
    steps = tokens - counted.count("spec_decode_num_accepted_tokens")
    assert not found.failures
    return Cell(found.metrics.tpot_s.mean, tokens / steps, found.metrics.output_throughput)
