"""How fast is this load: plans, comparisons of drafts and schedules give one answer, under each engine."""

from typing import NamedTuple

import pytest

from swiftspec.artifacts.load_metrics import RECORDED_ROUNDS
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.plan import Goal, Plan
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.drafts.compare import compare_kinds
from swiftspec.planner.drafts.named import DraftInput, Kind, chain_for
from swiftspec.planner.for_device import plan_for, prepare
from swiftspec.planner.load import Load
from swiftspec.planner.planned_model import planned_pair
from swiftspec.planner.search.options import SearchOptions
from swiftspec.planner.under_load.loads import closed_loop_workload
from swiftspec.planner.under_load.schedule import draft_schedule
from swiftspec.policies.chains.parallel_chain import ParallelChain
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.trees.heads import HeadChain

PROMPT, OUTPUT, LENGTH = 256, 64, 3


class Pair(NamedTuple):
    """Models on devices."""

    target: str
    draft: str
    device: str
    num_devices: int
    quant: str


PAIRS = (
    Pair("llama-3.1-8b", "llama-3.2-1b", "h100", 1, "bf16"),
    Pair("llama-3.3-70b", "llama-3.2-1b", "h100", 8, "fp8"),
    Pair("qwen3-14b", "qwen3-0.6b", "h100", 2, "bf16"),
    Pair("llama-3.1-8b", "eagle3", "h100", 1, "bf16"),
    Pair("qwen3-32b", "eagle3", "h100", 2, "fp8"),
    Pair("qwen3-32b", "dflash", "h100", 4, "bf16"),
)
ENGINES, LOADS = ("swiftspec", "vllm@0.15", "sglang"), (1, 4, 16, 64)
# Every engine with every load, each of another pair; every pair under two engines.
CASES = [
    (PAIRS[(2 * number + load) % len(PAIRS)], engine, clients)
    for number, engine in enumerate(ENGINES)
    for load, clients in enumerate(LOADS)
]


@pytest.fixture(autouse=True)
def _one_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain decoding, and one length of each chain; no loads between, which only a break-even needs."""
    monkeypatch.setattr("swiftspec.planner.drafts.compare._BETWEEN", ())
    for chain in (SerialChain, HeadChain, ParallelChain):
        monkeypatch.setattr(chain, "search_space", classmethod(lambda cls: iter([cls(num_draft_tokens=LENGTH)])))
    monkeypatch.setattr(
        "swiftspec.planner.drafts.compare.kinds_of",
        lambda name, kind, **_: [Kind(name=name, policies=(chain_for(kind).name,))],
    )


def deployment(pair: Pair, engine: str) -> Deployment:
    return Deployment(
        device=pair.device,
        num_devices=pair.num_devices,
        quant=pair.quant,
        engine=engine,
        context=PROMPT,
        output_tokens=OUTPUT,
    )


def plan(pair: Pair, on: Deployment, clients: int) -> Plan:
    load = Load(workload=closed_loop_workload(clients, PROMPT, OUTPUT), options=LoadOptions(max_running=clients))
    chain = chain_for(planned_pair(pair.target, pair.draft)[1].kind)
    goal = Goal(splits=(str(pair.num_devices),))
    options = SearchOptions(load=load, num_jobs=1, policy=chain.name, goal=goal)
    return plan_for(on, target=pair.target, draft=pair.draft, options=options, progress=lambda *_: None).plan


@pytest.mark.parametrize(("pair", "engine", "clients"), CASES, ids=lambda value: str(getattr(value, "draft", value)))
def test_plans_comparisons_and_schedules_say_the_same(pair: Pair, engine: str, clients: int) -> None:
    on = deployment(pair, engine)
    models = planned_pair(pair.target, pair.draft)
    made = plan(pair, on, clients).under_load
    assert made is not None
    compared = compare_kinds(
        on,
        target=pair.target,
        drafts=[DraftInput(draft=pair.draft)],
        clients=[clients],
        num_jobs=1,
        progress=lambda *_: None,
    )
    plain = compared.plain.at(clients)
    assert plain is not None
    assert plain.method == RECORDED_ROUNDS
    assert 1 / made.predictions["autoregressive"].metrics.tpot_s.mean == pytest.approx(
        plain.user_tokens_per_s, rel=1e-12
    )
    chain = chain_for(models[1].kind)
    fastest = plain.user_tokens_per_s
    (drafted,) = (kind for kind in compared.kinds if kind.draft)
    if (point := drafted.at(clients)) is not None:
        predicted = made.predictions[chain.name]
        assert predicted.method == point.method == RECORDED_ROUNDS
        assert 1 / predicted.metrics.tpot_s.mean == pytest.approx(point.user_tokens_per_s, rel=1e-12)
        fastest = max(fastest, point.user_tokens_per_s)
    longest = closed_loop_workload(clients, PROMPT, OUTPUT).longest_request
    inputs = prepare(on, target=models[0], draft=models[1], longest=longest)
    (length,) = (
        each
        for each in draft_schedule(
            inputs.profile,
            inputs.trace,
            num_devices=pair.num_devices,
            max_running=clients,
            serving=on.serving(*models),
        )
        if each.batch == clients
    )
    assert length.plain_tokens_per_s == pytest.approx(clients * plain.user_tokens_per_s, rel=1e-12)
    assert length.tokens_per_s == pytest.approx(clients * fastest, rel=1e-12)
