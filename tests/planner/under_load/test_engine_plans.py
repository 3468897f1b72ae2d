"""Plans and comparisons of drafts for an engine that serves: one predictor, under its own limits."""

from typing import Any

import numpy as np
import pytest

from swiftspec.api.planning import simulate_load
from swiftspec.artifacts.distributions import Distribution, Process
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.workload import Workload
from swiftspec.costmodel.steps import StepWork
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.drafts.compare import compare_kinds
from swiftspec.planner.drafts.named import DraftInput
from swiftspec.planner.for_device import plan_for, prepare
from swiftspec.planner.load import Load
from swiftspec.planner.planned_model import PlannedModel, planned_pair
from swiftspec.planner.search.options import SearchOptions
from swiftspec.planner.under_load.arrays import simulate
from swiftspec.planner.under_load.loads import Requests, closed_loop_workload
from swiftspec.planner.under_load.schedule import draft_schedule
from swiftspec.policies import POLICIES, Layout
from swiftspec.policies.effects import Role
from swiftspec.reports.under_load import cached
from swiftspec.workload import Arrivals, Lengths, Prefixes, make_workload

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
    run = simulate(requests, served.on(1, context=workload.longest_request).under_load())
    metrics = made.under_load.predictions["autoregressive"].metrics
    assert metrics.tpot_s.mean == pytest.approx(run.tpot_s.mean(), rel=1e-9)
    assert metrics.e2el_s.mean == pytest.approx(run.e2e_s.mean(), rel=1e-9)


def test_a_comparison_of_drafts_says_of_a_load_what_a_plan_says(made: Plan) -> None:
    assert made.under_load is not None
    compared = compare_kinds(
        deployment(),
        target=TARGET,
        drafts=[DraftInput(draft=DRAFT)],
        clients=[16],
        num_jobs=1,
        progress=lambda *_: None,
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
        on, target=TARGET, drafts=[DraftInput(draft="eagle3")], clients=[1, 64], num_jobs=1, progress=lambda *_: None
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
        ({"engine": "swiftspec", "settings": {"max_num_seqs": "4"}}, "set max_num_seqs is 4; it needs another engine"),
    ],
)
def test_an_engine_or_a_limit_that_there_is_not_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        deployment(**changes)


def test_more_clients_than_the_engine_runs_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="clients is 16; expected 1 to 8"):
        compare_kinds(
            deployment(settings={"max_num_seqs": "8"}),
            target=TARGET,
            drafts=[],
            clients=[16],
            num_jobs=1,
            progress=lambda *_: None,
        )


def chats(**changes: Any) -> Workload:
    known: dict[str, Any] = {"turns": 4, "think_time_s": 2.0, "system_prompt_tokens": 500}
    return make_workload(
        Arrivals(process=Process.POISSON, rate=1.0),
        num_requests=80,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=100),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=60),
        prefixes=Prefixes(**known | changes),
    )


def planned(load: Load, draft: str = "eagle3", **changes: Any) -> Plan:
    options = SearchOptions(load=load, num_jobs=1)
    on = deployment(**changes)
    return plan_for(on, target=TARGET, draft=draft, options=options, progress=lambda *_: None).plan


def test_a_head_finds_a_block_less_of_every_prompt_and_leaves_less_room() -> None:
    load = planned(Load(workload=chats())).under_load
    assert load is not None
    plain, head = load.predictions["autoregressive"].cache, load.predictions["head_chain"].cache
    assert plain is not None
    assert head is not None
    assert head.tokens < plain.tokens
    prompts = [request.prompt_tokens for request in chats().requests]
    lost = 16 * (len(prompts) - 1) / sum(prompts)
    assert plain.hit_rate - head.hit_rate == pytest.approx(lost, rel=0.02)
    assert plain.hit_rate == pytest.approx(load.repeated_share, abs=0.02), "but for parts of blocks"


def test_a_prefix_cache_that_is_off_finds_nothing_and_a_draft_model_gives_nothing_up() -> None:
    off = planned(Load(workload=chats()), settings={"enable_prefix_caching": "false"}).under_load
    on = planned(Load(workload=chats()), draft=DRAFT).under_load
    assert off is not None
    assert on is not None
    assert {each.cache.hit_rate for each in off.predictions.values() if each.cache} == {0.0}
    assert len({each.cache.hit_rate for each in on.predictions.values() if each.cache}) == 1
    assert off.predictions["autoregressive"].metrics.ttft_s.mean > on.predictions["autoregressive"].metrics.ttft_s.mean


def test_a_pool_that_only_decodes_says_how_many_instances_read_its_prompts() -> None:
    workload = chats(turns=1, think_time_s=0.0, system_prompt_tokens=7900)
    made = planned(Load(workload=workload, transfer_s=0.01))
    assert made.under_load is not None
    pool = made.under_load.decode_pool
    assert pool is not None
    assert pool.prompt_tokens_per_s == pytest.approx(8000.0), "one prompt of 8000 a second"
    plain = made.under_load.predictions["autoregressive"].metrics
    served = deployment().serving(*planned_pair(TARGET, "eagle3"))
    assert served is not None
    step_s = served.on(1, context=8060).step_s(StepWork(chunks=[(8000, 0)], sampled=1))
    assert pool.prefill_tokens_per_s == pytest.approx(8000 / step_s)
    assert pool.num_prefill_instances == 1
    assert plain.ttft_s.mean > 0.01
    whole = planned(Load(workload=workload)).under_load
    assert whole is not None
    assert whole.decode_pool is None
    assert plain.tpot_s.mean < whole.predictions["autoregressive"].metrics.tpot_s.mean
    assert "takes 1 instance on as many devices" in cached(made, made.under_load)


def test_this_packages_engine_has_no_prefix_cache_and_says_so() -> None:
    made = planned(Load(workload=chats(), most_requests=8), engine="swiftspec")
    assert made.under_load is not None
    assert "this package's engine has no prefix cache" in cached(made, made.under_load)
    with pytest.raises(ValueError, match="transfer_ms is 0; this package's engine reads prompts itself"):
        planned(Load(workload=chats(), transfer_s=0.0), engine="swiftspec")


def test_a_plan_is_simulated_under_its_engine_as_it_was_predicted() -> None:
    load = Load(workload=chats())
    options = SearchOptions(load=load, num_jobs=1)
    found = plan_for(deployment(), target=TARGET, draft="eagle3", options=options, progress=lambda *_: None)
    again = simulate_load(found, load.workload, engine="vllm@0.15")
    assert found.plan.under_load is not None
    prediction = found.plan.under_load.predictions[found.plan.chosen.policy]
    assert again.metrics == prediction.metrics
    assert again.cache == prediction.cache
    own = simulate_load(found, load.workload, engine="swiftspec")
    assert own.metrics == simulate_load(found, load.workload).metrics
    assert own.metrics != again.metrics
