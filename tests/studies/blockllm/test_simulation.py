"""Chains of blocks in simulated time, against closed forms: sums of hops, M/D/1, places of KV, surrogates."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from swiftspec.studies.blockllm.closed_forms import break_even_accuracy, md1_wait_s, surrogate_gain_s
from swiftspec.studies.blockllm.command import break_even, burst, md1_mean_wait_s
from swiftspec.studies.blockllm.deployment import Block, Deployment, Links, StepTime, Surrogate
from swiftspec.studies.blockllm.layouts import ChainBlock, Costs, per_model, shared_blocks
from swiftspec.studies.blockllm.queueing import Cache
from swiftspec.studies.blockllm.requests import TenantRequest, requests_of
from swiftspec.studies.blockllm.simulation import simulate_blocks
from swiftspec.workload import Arrivals, Lengths, RequestClass, make_workload

LINKS = Links(latency_s=0.001, bytes_per_s=1e6, row_bytes=100)
NO_LINKS = Links()


def block(name: str, fixed_s: float, row_s: float = 0.0, *, max_batch: int = 64) -> Block:
    return Block(name=name, step=StepTime(fixed_s=fixed_s, row_s=row_s), max_batch=max_batch)


def chain(*blocks: Block, links: Links = NO_LINKS) -> Deployment:
    """A tenant `t` whose blocks have a group each, named like them."""
    names = tuple(each.name for each in blocks)
    return Deployment(blocks=blocks, groups={name: (name,) for name in names}, chains={"t": names}, links=links)


def test_latency_without_contention_is_the_sum_of_the_hops() -> None:
    deployment = chain(block("x", 0.003, 2e-4), block("y", 0.005, 1e-4), block("z", 0.002), links=LINKS)
    request = TenantRequest(tenant="t", arrival_s=1.0, prompt_tokens=40, output_tokens=6)
    (served,) = simulate_blocks(deployment, [request]).served

    def token_s(rows: int) -> float:
        return 0.003 + 0.005 + 0.002 + 3e-4 * rows + 2 * LINKS.hop_s(rows)

    assert served.ttft_s == pytest.approx(token_s(40), rel=1e-12)
    # Each next token goes back to the first block.
    assert served.e2e_s == pytest.approx(token_s(40) + 5 * (token_s(1) + LINKS.hop_s(1)), rel=1e-12)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_wait_before_one_block_is_that_of_m_d_1(load: float) -> None:
    assert md1_mean_wait_s(load, num_requests=6000) == pytest.approx(md1_wait_s(load / 0.01, 0.01), rel=0.08)


def test_overload_has_no_mean_wait() -> None:
    with pytest.raises(ValueError, match="a load of 1"):
        md1_wait_s(100, 0.01)


def test_requests_of_tenants_share_a_step() -> None:
    step = block("shared", 0.01, 0.001, max_batch=3)
    deployment = Deployment(blocks=(step,), groups={"g": ("shared",)}, chains={"t": ("shared",), "u": ("shared",)})
    run = simulate_blocks(deployment, [TenantRequest(tenant=name, output_tokens=2) for name in "tutut"])
    # Three share the first step and return before the other two, of which one fits into none of theirs.
    assert run.groups["g"].num_rows == 10
    assert [each.tokens_s for each in run.served] == [
        pytest.approx(times) for times in 3 * [[0.013, 0.026]] + 2 * [[0.038, 0.050]]
    ]


def test_returning_requests_go_first() -> None:
    deployment = chain(block("x", 0.01, max_batch=1))
    requests = [TenantRequest(tenant="t", output_tokens=3), TenantRequest(tenant="t", arrival_s=0.001)]
    first, second = simulate_blocks(deployment, requests).served
    assert [first.ended_s, second.ended_s] == pytest.approx([0.03, 0.04])
    first, second = simulate_blocks(deployment, requests, returning_first=False).served
    assert [first.ended_s, second.ended_s] == pytest.approx([0.04, 0.02])


@pytest.mark.parametrize("context", [200, 1000, 3000])
def test_kv_is_treated_as_the_queue_demands(context: int) -> None:
    """A burst of requests whose KV is on one of two replicas: each does what ends first, by the closed form."""
    step = StepTime(fixed_s=0.010, row_s=80e-6)
    links = Links(latency_s=0.005, bytes_per_s=4e9)
    kv_bytes = 131_072
    move_s, again_s = 0.005 + context * kv_bytes / 4e9, context * 80e-6
    queue = other_s = link_s = 0.0
    expected = []
    for _ in range(14):
        ends = {
            Cache.KEEP: queue * step(1) + step(1),
            Cache.MOVE: max(other_s, link_s + move_s) + step(1),
            Cache.RECOMPUTE: other_s + step(1) + again_s,
        }
        best = min(ends, key=lambda cache: (ends[cache], cache))
        expected.append((best,))
        queue += best is Cache.KEEP
        link_s += move_s if best is Cache.MOVE else 0
        other_s += step(1) + again_s if best is Cache.RECOMPUTE else 0
    found = burst(14, context=context, step=step, kv_bytes_per_token=kv_bytes, links=links)
    assert found == expected
    num_kept = next(number for number, choice in enumerate(found) if choice != (Cache.KEEP,))
    cheapest_s = min(move_s, again_s)
    assert (num_kept - 1) * step(1) <= cheapest_s < num_kept * step(1)
    assert {choice for (choice,) in found} == set(Cache) or context == 3000


def test_a_request_that_stays_is_not_moved() -> None:
    deployment = Deployment(
        blocks=(block("x", 0.01, max_batch=1),), groups={"a": ("x",), "b": ("x",)}, chains={"t": ("x",)}
    )
    request = TenantRequest(tenant="t", output_tokens=3, cached_tokens=10, cached_at="a")
    run = simulate_blocks(deployment, [request] * 4, stays=True)
    assert (run.groups["a"].num_steps, run.groups["b"].num_steps) == (12, 0)
    assert simulate_blocks(deployment, [request] * 4).end_s < run.end_s


@pytest.mark.parametrize(
    ("block_s", "behind_s", "cost_share"), [(0.004, 0.008, 0.5), (0.002, 0.010, 0.3), (0.004, 0.004, 0.8)]
)
def test_a_surrogate_breaks_even_where_the_saved_hop_is_the_expected_rerun(
    block_s: float, behind_s: float, cost_share: float
) -> None:
    expected = break_even_accuracy(block_s=block_s, cost_share=cost_share, behind_s=behind_s)
    found = break_even(block_s=block_s, cost_share=cost_share, behind_s=behind_s, num_tokens=1000)
    assert found == pytest.approx(expected, abs=0.02)
    assert surrogate_gain_s(expected, block_s=block_s, cost_share=cost_share, behind_s=behind_s) == pytest.approx(0)


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_tokens_with_surrogates_take_the_time_of_their_path(accuracy: float) -> None:
    """Two surrogates in a chain: right, each hop takes its surrogate's time; wrong, a rerun waits for what it began."""
    surrogates = tuple(Surrogate(block=name, group="s", cost_share=0.25, accuracy=accuracy) for name in "xy")
    blocks = (block("x", 0.008), block("y", 0.008), block("z", 0.008))
    names = tuple(each.name for each in blocks)
    deployment = Deployment(
        blocks=blocks,
        groups={**{name: (name,) for name in names}, "s": ()},
        chains={"t": names},
        surrogates=surrogates,
    )
    (served,) = simulate_blocks(deployment, [TenantRequest(tenant="t", output_tokens=2)]).served
    token_s = served.tokens_s[1] - served.tokens_s[0]
    # Right: surrogates to 4 ms, then z to 12 ms; y, begun at 2 ms, has verified by 10.
    # Wrong: x ends at 8 ms, y's useless step at 10, its rerun at 18; z, begun again at 12 and free at 20, ends at 28.
    assert token_s == pytest.approx(0.012 if accuracy else 0.028)


def test_no_work_is_lost_and_none_is_done_twice() -> None:
    workload = make_workload(
        Arrivals.parse("poisson:20", field="arrivals"),
        num_requests=60,
        prompt_tokens=Lengths.parse("fixed:30", field="prompt_tokens"),
        output_tokens=Lengths.parse("uniform:2:20", field="output_tokens"),
        classes=[RequestClass(name="t", share=0.7), RequestClass(name="u", share=0.3)],
    )
    requests = requests_of(workload, rate=40)
    costs = Costs(step=StepTime(fixed_s=0.01, row_s=1e-5), max_batch=4)
    chains = {name: (ChainBlock("shared", 0.75), ChainBlock(f"own {name}", 0.25)) for name in "tu"}
    for deployment in (
        per_model("tu", costs, num_devices=3),
        shared_blocks(chains, costs, num_devices=3),
        shared_blocks(chains, costs, num_devices=3, num_for_shared=2),
    ):
        run = simulate_blocks(deployment, requests)
        assert [len(each.tokens_s) for each in run.served] == [each.output_tokens for each in requests]
        passes = sum(each.output_tokens - 1 + each.prompt_tokens for each in requests)
        depth = len(deployment.chains["t"])
        assert sum(use.num_rows for use in run.groups.values()) >= passes * depth
        if not run.choices.get(Cache.RECOMPUTE):
            assert sum(use.num_rows for use in run.groups.values()) == passes * depth
        assert 0 < run.utilisation < 1
        assert run.tokens_per_s == pytest.approx(sum(each.output_tokens for each in requests) / run.end_s)


def test_a_crowded_tenant_gains_from_shared_layers() -> None:
    """All requests are one tenant's: with whole models it has one device of three, with all layers shared three."""
    costs = Costs(step=StepTime(fixed_s=0.01, row_s=0.0), max_batch=2)
    requests = [TenantRequest(tenant="t", output_tokens=10) for _ in range(12)]
    whole = simulate_blocks(per_model("tuv", costs), requests)
    shared = simulate_blocks(
        shared_blocks({name: (ChainBlock("shared", 1.0),) for name in "tuv"}, costs, num_devices=3), requests
    )
    assert whole.end_s == pytest.approx(12 / 2 * 10 * 0.01)
    assert shared.end_s == pytest.approx(whole.end_s / 3)
    assert [whole.utilisation, shared.utilisation] == pytest.approx([1 / 3, 1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"groups": {"g": ("x", "w")}}, "group g has w; expected one of x, y"),
        ({"chains": {"t": ("x", "w")}}, "chain t has w"),
        ({"chains": {"t": ()}}, "chain t is empty"),
        ({"groups": {"g": ("x",)}}, "chain t has y, which no group holds"),
        ({"blocks": (block("x", 1.0), block("x", 2.0))}, "same name twice"),
        ({"surrogates": (Surrogate(block="y", group="g", cost_share=0.1, accuracy=0.9),)}, "ends with y"),
        ({"surrogates": (Surrogate(block="x", group="h", cost_share=0.1, accuracy=0.9),)}, "no such group"),
    ],
)
def test_deployments_that_cannot_be_are_refused(changes: Mapping[str, Any], sentence: str) -> None:
    deployment = Deployment(
        blocks=(block("x", 1.0), block("y", 1.0)), groups={"g": ("x", "y")}, chains={"t": ("x", "y")}
    )
    with pytest.raises(ValueError, match=sentence):
        replace(deployment, **changes)


def test_requests_that_cannot_be_served_are_refused() -> None:
    deployment = chain(block("x", 0.01), block("y", 0.01))
    with pytest.raises(ValueError, match="tenant u; expected one of t"):
        simulate_blocks(deployment, [TenantRequest(tenant="u")])
    with pytest.raises(ValueError, match="cached_at is x, which does not hold y"):
        simulate_blocks(deployment, [TenantRequest(tenant="t", cached_tokens=5, cached_at="x")])
    with pytest.raises(ValueError, match=r"accuracy of the surrogate of x is 1\.5; expected 0 to 1"):
        Surrogate(block="x", group="y", cost_share=0.1, accuracy=1.5)
    with pytest.raises(ValueError, match="num_for_shared is 2; expected 1 to 1"):
        shared_blocks(
            {"t": (ChainBlock("x", 1.0),)}, Costs(step=StepTime(fixed_s=1, row_s=0)), num_devices=2, num_for_shared=2
        )
