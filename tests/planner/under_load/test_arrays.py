"""The fast simulation of a load: against exact laws, and against steps that are formed one by one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from swiftspec.costmodel.steps import StepWork
from swiftspec.planner.under_load import arrays
from swiftspec.planner.under_load.arrays import EngineUnderLoad, simulate
from swiftspec.planner.under_load.decoding import Chains
from swiftspec.planner.under_load.loads import ArrayRun, Requests, Turn
from swiftspec.scheduler.prefix_cache import PrefixCache
from swiftspec.scheduler.step_rules import StepRule

STEP_S = 0.01


def seconds(work: StepWork) -> float:
    """A step with a start, rows, reading of the caches, and prompts."""
    prompts = sum(tokens for tokens, _ in work.chunks)
    return STEP_S + 1e-5 * work.rows + 1e-8 * work.cache_tokens + 2e-5 * prompts


def engine(**changes: Any) -> EngineUnderLoad:
    known = EngineUnderLoad(
        rule=StepRule.DECODES_FIRST,
        step_tokens=512,
        max_requests=64,
        cache_tokens=1_000_000,
        runs_ahead=False,
        step_s=seconds,
        request_s=0.0,
        prompt_token_s=0.0,
        token_s=0.0,
        prefixes=PrefixCache(block_tokens=16),
    )
    return replace(known, **changes)


def requests(count: int = 200, *, rate: float = 5.0, clients: int | None = None, seed: int = 1) -> Requests:
    rng = np.random.default_rng(seed)
    return Requests(
        arrival_s=np.zeros(count) if clients else np.cumsum(rng.exponential(1 / rate, count)),
        prompt_tokens=rng.integers(20, 900, count),
        output_tokens=rng.integers(1, 300, count),
        num_clients=clients,
    )


def test_one_request_alone_is_its_prompt_and_its_tokens() -> None:
    alone = Requests(arrival_s=np.array([1.0]), prompt_tokens=np.array([100]), output_tokens=np.array([11]))
    run = simulate(alone, engine(step_s=lambda work: 0.3 if work.chunks else 0.1, request_s=0.05, token_s=0.001))
    assert run.ttft_s[0] == pytest.approx(0.05 + 0.3 + 0.001)
    assert run.tpot_s[0] == pytest.approx(0.1)
    assert run.num_steps == 11
    assert run.mean_running == 1.0


@pytest.mark.parametrize("rule", [StepRule.DECODES_FIRST, StepRule.PROMPTS_FIRST])
@pytest.mark.parametrize("clients", [None, 16])
@pytest.mark.parametrize("ahead", [False, True])
def test_steps_taken_together_are_those_taken_one_by_one(
    rule: str, clients: int | None, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = requests(clients=clients)
    together = simulate(load, engine(rule=rule, runs_ahead=ahead))
    monkeypatch.setattr(arrays, "_ALIKE", 0.0)  # no cache may grow: each step is alone
    apart = simulate(load, engine(rule=rule, runs_ahead=ahead))
    assert together.num_steps == pytest.approx(apart.num_steps, rel=1e-3)
    for name in ("e2e_s", "tpot_s", "ttft_s"):
        assert getattr(together, name).mean() == pytest.approx(getattr(apart, name).mean(), rel=2e-3), name


@pytest.mark.parametrize("clients", [None, 8])
def test_littles_law_holds(clients: int | None) -> None:
    load = requests(800, clients=clients)
    run = simulate(load, engine())
    inside = run.e2e_s.sum() / run.end_s
    if clients:
        assert inside == pytest.approx(clients, rel=0.05), "all clients are busy but at the end"
    stepping = (run.e2e_s - run.queued_s).sum()
    busy_s = run.num_steps * STEP_S  # at least
    assert run.mean_running <= stepping / busy_s
    assert run.end_s >= busy_s


def test_nobody_has_more_room_than_there_is() -> None:
    load = requests(60, rate=50.0)
    free = simulate(load, engine())
    tight = simulate(load, engine(cache_tokens=3000))
    assert tight.preemptions.sum() > 0
    assert free.preemptions.sum() == 0
    assert tight.e2e_s.mean() > free.e2e_s.mean()
    assert (tight.e2e_s > 0).all(), "all are served"


def test_shared_prompts_are_read_once_and_take_room_once() -> None:
    count = 100
    load = Requests(
        arrival_s=np.linspace(0.0, 0.5 * (count - 1), count),
        prompt_tokens=np.full(count, 500),
        output_tokens=np.full(count, 50),
        segments=[[("all", 500)]] * count,
    )
    run = simulate(load, engine(cache_tokens=2500))
    assert run.hit_rate == pytest.approx(99 * 496 / (100 * 500))
    assert run.preemptions.sum() == 0
    assert run.ttft_s[1:].max() < run.ttft_s[0]


def test_a_load_that_is_too_much_falls_behind_and_another_does_not() -> None:
    def served(rate: float) -> ArrayRun:
        return simulate(requests(2000, rate=rate), engine(max_requests=8))

    assert served(2.0).falls_behind < 0.01
    assert served(12.0).falls_behind > 0.2


def test_requests_at_once_are_limited() -> None:
    run = simulate(requests(100, rate=1000.0), engine(max_requests=4))
    assert run.mean_running <= 4


def test_a_step_formed_ahead_makes_a_newcomer_wait_for_one_more() -> None:
    long = Requests(arrival_s=np.array([0.0, 1.0]), prompt_tokens=np.array([1, 1]), output_tokens=np.array([400, 2]))
    first = simulate(long, engine(runs_ahead=False)).ttft_s[1]
    ahead = simulate(long, engine(runs_ahead=True)).ttft_s[1]
    assert ahead - first == pytest.approx(STEP_S, rel=0.1)


def test_drafted_tokens_come_as_recorded_rounds_bring_them() -> None:
    chains = Chains(rows=4, draft_s=lambda requests, context: 0.002, tokens=np.array([3, 1, 2]))
    load = Requests(arrival_s=np.array([0.0]), prompt_tokens=np.array([10]), output_tokens=np.array([601]))
    run = simulate(load, engine(step_s=lambda work: 0.01, chains=chains))
    assert run.num_steps == 1 + 300, "two tokens a round"
    assert run.tpot_s[0] == pytest.approx(0.012 / 2)


def test_verified_rows_share_the_steps_tokens_with_prompts() -> None:
    widths: list[int] = []

    def noting(work: StepWork) -> float:
        widths.append(work.rows)
        return seconds(work)

    chains = Chains(rows=4, draft_s=lambda requests, context: 0.0, tokens=np.array([2]))
    run = simulate(requests(100, rate=20.0), engine(chains=chains, step_s=noting, step_tokens=128))
    assert max(widths) <= max(128, 4 * 64)
    assert (run.output_tokens > 0).all()


def conversations(*, clients: int | None = None) -> Requests:
    """Two of three turns, 100 new tokens and 50 of answer each, a second apart; the second begins after 0.1 s."""
    prompts = [100, 250, 400]
    turns = {number: Turn(number + 1, 1.0) for number in (0, 1, 3, 4)}
    return Requests(
        arrival_s=np.array([0.0] * 3 + [0.0 if clients else 0.1] * 3),
        prompt_tokens=np.array(prompts * 2),
        output_tokens=np.full(6, 50),
        segments=[[(name, tokens)] for name in "ab" for tokens in prompts],
        num_clients=clients,
        turns=turns,
    )


def test_a_turn_comes_after_the_answer_and_the_time_to_think() -> None:
    run = simulate(conversations(), engine())
    ends = run.arrival_s + run.e2e_s
    assert run.arrival_s[[0, 3]].tolist() == [0.0, 0.1]
    for number in (0, 1, 3, 4):
        assert run.arrival_s[number + 1] == pytest.approx(ends[number] + 1.0)


def test_a_turn_finds_the_text_so_far_with_its_answer() -> None:
    run = simulate(conversations(), engine())
    # Of 250 tokens 149 were read or decoded before: nine blocks; of 400 the first 299: 18 blocks.
    assert run.hit_rate == pytest.approx(2 * (144 + 288) / (2 * 750))
    assert simulate(conversations(), engine(prefixes=PrefixCache(block_tokens=0))).hit_rate == 0.0


def test_a_client_begins_a_conversation_when_its_last_one_has_ended() -> None:
    run = simulate(conversations(clients=1), engine())
    assert run.arrival_s[3] == pytest.approx(run.arrival_s[2] + run.e2e_s[2])


def test_a_conversation_under_way_is_not_forgotten_for_its_own_next_turn() -> None:
    """It takes room for its new tokens only, so that the other one may stay, too."""
    tight = simulate(conversations(), engine(cache_tokens=900))
    assert tight.hit_rate == simulate(conversations(), engine()).hit_rate
    assert tight.preemptions.sum() == 0
    less = simulate(conversations(), engine(cache_tokens=500))
    assert less.hit_rate < tight.hit_rate


def test_a_pool_that_only_decodes_reads_one_token_of_each_prompt() -> None:
    chunks: list[int] = []

    def noting(work: StepWork) -> float:
        chunks.extend(tokens for tokens, _ in work.chunks)
        return seconds(work)

    load = requests(50, rate=2.0)
    pool = simulate(replace(load, transfer_s=0.25), engine(step_s=noting))
    assert chunks == [1] * 50
    assert (pool.queued_s >= 0.25).all()
    whole = simulate(load, engine())
    assert pool.tpot_s.mean() < whole.tpot_s.mean()
    assert pool.hit_rate == 0.0


def test_a_request_that_gave_way_is_read_again_even_by_a_pool_that_only_decodes() -> None:
    load = replace(requests(60, rate=50.0), transfer_s=0.0)
    tight = simulate(load, engine(cache_tokens=3000))
    assert tight.preemptions.sum() > 0
    assert tight.e2e_s.mean() > simulate(load, engine()).e2e_s.mean()


def test_ranks_share_a_step_and_read_no_more_of_one_prompt_than_one_of_them_has() -> None:
    chunks: list[list[int]] = []

    def noting(work: StepWork) -> float:
        chunks.append([tokens for tokens, _ in work.chunks])
        return seconds(work)

    load = Requests(arrival_s=np.zeros(5), prompt_tokens=np.full(5, 300), output_tokens=np.full(5, 2))
    simulate(load, engine(step_s=noting, ranks=4, step_tokens=512))
    assert chunks[0] == [128] * 4


def test_prompts_wait_until_each_rank_has_one_or_for_as_many_steps_as_are_said() -> None:
    together: list[int] = []

    def noting(work: StepWork) -> float:
        together.append(len(work.chunks))
        return seconds(work)

    load = replace(requests(200, clients=16), prompt_tokens=np.full(200, 64))
    at_once = simulate(load, engine(step_s=noting, ranks=4))
    alone, together[:] = together[:], []
    waiting = simulate(load, engine(step_s=noting, ranks=4, prompt_wait=500))
    assert sum(count > 0 for count in together) < sum(count > 0 for count in alone)
    # But for the last ones, when there are too few clients left.
    assert min([count for count in together if count][:-8]) == 4
    assert np.median(waiting.ttft_s) > 2 * np.median(at_once.ttft_s)
    short = simulate(load, engine(ranks=4, prompt_wait=2))
    assert np.median(at_once.ttft_s) < np.median(short.ttft_s) < np.median(waiting.ttft_s)
