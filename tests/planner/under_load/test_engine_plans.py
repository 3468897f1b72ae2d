"""Plans and comparisons of drafts for an engine that serves: one predictor, under its own limits."""

from typing import Any

import numpy as np
import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.planner.deployment import Deployment, PlannedModel, planned_pair
from swiftspec.planner.for_device import plan_for, prepare
from swiftspec.planner.kinds.compare import compare_kinds
from swiftspec.planner.kinds.named import Asked
from swiftspec.planner.load import Load
from swiftspec.planner.options import SearchOptions
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.closed_loop import closed_loop_workload, longest_request
from swiftspec.planner.under_load.schedule import draft_schedule
from swiftspec.planner.under_load.served import Requests
from swiftspec.policies import POLICIES, Layout
from swiftspec.policies.effects import Role

TARGET, DRAFT = "llama-3.1-8b", "llama-3.2-1b"
PROMPT, OUTPUT = 256, 128


def deployment(**changes: Any) -> Deployment:
    known = {"device": "h100", "num_devices": 1, "engine": "vllm@0.15", "context": PROMPT, "output_tokens": OUTPUT}
    return Deployment(**{**known, **changes})


def load(clients: int) -> Load:
    return Load(workload=closed_loop_workload(clients, PROMPT, OUTPUT))


@pytest.fixture(scope="module")
def made() -> Plan:
    options = SearchOptions(load=load(16), num_jobs=1)
    return plan_for(deployment(), target=TARGET, draft=DRAFT, options=options, progress=lambda *_: None).plan


def test_a_plan_is_searched_under_the_engines_limits_and_says_them(made: Plan) -> None:
    assert made.under_load is not None
    assert made.under_load.engine == (
        "vLLM 0.15 with steps of at most 8192 tokens and 1024 requests, formed while one runs, graphs up to 512"
    )
    assert made.under_load.options.max_running == 1024
    assert made.under_load.num_simulated == made.under_load.num_requests


def test_it_holds_nothing_that_the_engine_cannot_run(made: Plan) -> None:
    policies = [POLICIES[name] for name in made.candidates]
    assert all(policy.layout is not Layout.DISAGGREGATED for policy in policies)
    assert not any(candidate.build().verifies_trees for candidate in made.candidates.values())
    assert any("vLLM verifies chains" in reason for reason in made.rejected)


def test_plain_decoding_is_what_the_fast_simulation_says(made: Plan) -> None:
    assert made.under_load is not None
    target = PlannedModel.of(Role.TARGET, TARGET)
    served = deployment().serving(target, target.draft(DRAFT))
    assert served is not None
    workload = closed_loop_workload(16, PROMPT, OUTPUT)
    requests = Requests(
        arrival_s=np.zeros(48),
        prompt_tokens=np.full(48, PROMPT),
        output_tokens=np.array([request.output_tokens for request in workload.requests]),
        num_clients=16,
    )
    run = simulate(requests, served.deployed(1, context=longest_request(workload)).under_load())
    metrics = made.under_load.predictions["autoregressive"].metrics
    assert metrics.tpot_s.mean == pytest.approx(run.tpot_s.mean(), rel=1e-9)
    assert metrics.e2el_s.mean == pytest.approx(run.e2e_s.mean(), rel=1e-9)


def test_a_comparison_of_drafts_says_of_a_load_what_a_plan_says(made: Plan) -> None:
    assert made.under_load is not None
    compared = compare_kinds(
        deployment(), target=TARGET, drafts=[Asked(draft=DRAFT)], clients=[16], num_jobs=1, progress=lambda *_: None
    )
    assert compared.engine == made.under_load.engine
    plain = compared.plain.at(16)
    assert plain is not None
    tpot_s = made.under_load.predictions["autoregressive"].metrics.tpot_s.mean
    assert plain.user_tokens_per_s == pytest.approx(1 / tpot_s, rel=1e-9)
    assert {kind.name for kind in compared.kinds} == {"none", "suffix", DRAFT}, "none has devices of its own"


def test_a_schedule_is_what_a_comparison_says_and_shrinks_with_the_batch() -> None:
    """Of a head, whose lengths a comparison searches, too; both with requests as long as the synthesised ones."""
    on = deployment()
    models = planned_pair(TARGET, "eagle3")
    inputs = prepare(on, target=models[0], draft=models[1])
    serving = on.serving(*models)
    found = draft_schedule(inputs.profile, inputs.trace, num_devices=1, max_running=256, serving=serving)
    assert [each.batch for each in found] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    compared = compare_kinds(
        on, target=TARGET, drafts=[Asked(draft="eagle3")], clients=[1, 64], num_jobs=1, progress=lambda *_: None
    )
    (head,) = (kind for kind in compared.kinds if kind.name == "eagle3")
    for batch in (1, 64):
        (length,) = (each for each in found if each.batch == batch)
        point, plain = head.at(batch), compared.plain.at(batch)
        assert point is not None
        assert plain is not None
        assert length.plain_tokens_per_s == pytest.approx(batch * plain.user_tokens_per_s, rel=1e-9)
        assert length.tokens_per_s == pytest.approx(batch * point.user_tokens_per_s, rel=1e-9)
        assert length.num_draft_tokens == point.num_draft_tokens
    assert found[0].num_draft_tokens > found[-1].num_draft_tokens


def test_fewer_tokens_a_step_and_fewer_requests_cost_speed() -> None:
    def speed(settings: dict[str, str]) -> float:
        compared = compare_kinds(
            deployment(settings=settings), target=TARGET, drafts=[], clients=[16], num_jobs=1, progress=lambda *_: None
        )
        point = compared.plain.at(16)
        assert point is not None
        return point.user_tokens_per_s

    assert speed({}) != speed({"max_num_batched_tokens": "64"})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"engine": "vllm@new"}, "names no release"),
        ({"engine": "vlm"}, "engine is 'vlm'"),
        ({"engine": "auto@1"}, "engine is 'auto', which is called swiftspec now"),
        ({"settings": {"max_tokens": "4"}}, "set max_tokens is no limit of vLLM"),
        ({"engine": "swiftspec", "settings": {"max_num_seqs": "4"}}, "set max_num_seqs needs another engine"),
    ],
)
def test_an_engine_or_a_limit_that_there_is_not_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        deployment(**changes)


def test_more_clients_than_the_engine_runs_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="clients has 16; expected 1 to 8"):
        compare_kinds(
            deployment(settings={"max_num_seqs": "8"}),
            target=TARGET,
            drafts=[],
            clients=[16],
            num_jobs=1,
            progress=lambda *_: None,
        )
