"""CONTRIBUTING.md: its lists of files are complete, and what is added as it says is planned and used."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from swiftspec import engines
from swiftspec.api import LoadOptions, simulate_load
from swiftspec.artifacts.distributions import Distribution, Lengths, Process
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.devices import DEVICES
from swiftspec.engines import ENGINES
from swiftspec.engines.sglang import SGLANG
from swiftspec.export import export_plan
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import plan_for
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies import POLICIES
from swiftspec.policies.chains.serial import SerialTree
from swiftspec.scheduler.controls import named
from swiftspec.scheduler.controls.control import Demand
from swiftspec.scheduler.costs import RoundCosts
from swiftspec.workload import Arrivals, make_workload
from tests.test_architecture import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^##)", PAGE.partition("## How to add\n")[2], re.MULTILINE | re.DOTALL))
RECORDED = ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores/plan.json"

# What only files that know an existing one have in them, so that another one is a change there.
KNOWN = {
    "A policy": r"\bSpecBranch\b",
    "A draft kind": r"DraftKind\.(PARALLEL|BLOCK)|\bBlockSpec\b",
    "An engine": r"\bLLAMACPP\b",
    "A device": r"\brtx[-_]pro[-_]6000",
    "A model family": r"qwen3_moe|Qwen3Moe",
    "A control": r"goodput-per-request",
    "A server field": r"ignore_eos",
    "A format of load traces": r"(?i)burstgpt",
    "A study": r"\blatency_law\b",
}


def paths(entry: str) -> list[str]:
    """Files and folders that an entry names, but those that are to be made."""
    found = re.findall(r"`((?:swiftspec|tests|docs|tools)/[\w./-]*)`", ENTRIES[entry])
    assert found, entry
    return found


def covered(file: str, by: Sequence[str]) -> bool:
    """Whether an entry names a file, or its folder."""
    return any(file == path or file.startswith(f"{path}/") for path in by)


@pytest.mark.parametrize("entry", ENTRIES)
def test_what_an_entry_names_exists(entry: str) -> None:
    assert [path for path in paths(entry) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("entry", KNOWN)
def test_no_file_that_knows_an_existing_one_is_missing(entry: str) -> None:
    outside = ("swiftspec/studies/", "swiftspec/validation/published/") if entry != "A study" else ()
    knowing = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "swiftspec").rglob("*.py")
        if re.search(KNOWN[entry], path.read_text(encoding="utf-8"))
    ]
    assert knowing
    missing = [file for file in knowing if not file.startswith(outside) and not covered(file, paths(entry))]
    assert missing == []


def planned(*, device: str = "h100", engine: str = "swiftspec", policy: str | None = None) -> Plan:
    return plan_for(
        Deployment(device=device, num_devices=1, engine=engine, context=128, output_tokens=64),
        target="llama-3.1-8b",
        draft="llama-3.2-1b",
        options=SearchOptions(policy=policy, num_jobs=1),
        progress=lambda *_: None,
    ).plan


@dataclass(frozen=True, slots=True, kw_only=True)
class BushyTree(SerialTree):
    """Another policy: a tree under a name of its own."""

    name: ClassVar[str] = "bushy_tree"


def test_a_policy_that_is_in_the_registry_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, BushyTree.name, BushyTree)
    plan = planned(policy=BushyTree.name)
    assert BushyTree.name in {candidate.policy for candidate in (plan.chosen, *plan.alternatives)}


def test_a_device_that_is_in_the_registry_is_planned_for_and_its_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    faster = replace(DEVICES["h100-sxm"], name="x100", memory_bandwidth_Bps=20e12)
    monkeypatch.setitem(DEVICES, faster.name, faster)
    plan = planned(device="x100", policy="autoregressive")
    assert plan.device == "x100"
    read_bytes = 15e9  # the weights of a step: 8.03 billion in bf16, without the embedding
    assert 3.35e12 / read_bytes < plan.chosen.prediction.metrics.figures.tokens_per_s < 20e12 / read_bytes
    small = replace(faster, name="x10", memory_bytes=8 << 30)
    monkeypatch.setitem(DEVICES, small.name, small)
    with pytest.raises(ValueError, match=r"does not fit on one x10: .* more than the 7\.9 GB usable of 8\.6 GB"):
        planned(device="x10", policy="autoregressive")


def test_an_engine_that_is_described_is_planned_for_and_exported_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SGLANG.command is not None
    other = replace(SGLANG, name="other", full_name="Other engine", fitted_as=SGLANG.name)
    monkeypatch.setattr(engines, "ENGINES", {**ENGINES, other.name: other})
    plan = planned(engine="other", policy="serial_chain")
    assert plan.engine == "other"
    exported = export_plan(plan, engines.engine_named("other"), policy="serial_chain")
    assert exported.full_name == "Other engine"
    assert "sglang" in exported.command


class OneOfThem:
    """Another control: drafts for the first request of a round, and for nobody else."""

    learns: ClassVar[bool] = False
    weighs_drafts: ClassVar[bool] = False

    def __init__(self) -> None:
        self.rounds = 0

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        """Rows of each request."""
        self.rounds += 1
        first, *others = demands
        return [min(1 + len(first.survival), max_rows - len(others)), *(1 for _ in others)]


def test_a_control_that_has_a_name_decides_the_rounds_of_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    control = OneOfThem()
    monkeypatch.setattr(named, "_NAMED", {"one-of-them": control})
    load = make_workload(
        Arrivals(process=Process.CLOSED, num_clients=4),
        num_requests=12,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=24),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=24),
    )
    steered, free = (
        simulate_load(
            Planned.load(RECORDED), load, policy="serial_chain", options=LoadOptions(max_running=4, control=name)
        )
        for name in ("one-of-them", None)
    )
    assert control.rounds > 10
    assert 1 < steered.metrics.tokens_per_round < free.metrics.tokens_per_round
