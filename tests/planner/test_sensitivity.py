from dataclasses import replace

import numpy as np
import pytest

from swiftspec.artifacts.plan import Goal, Sensitivity
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import Guesser
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.evaluation import Budget, Evaluator
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.sensitivity import Changes, lengthened, sensitivities, weakened
from swiftspec.planner.search.simulations import RankedOption
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from tests.builders import machine_profile, with_guesses
from tests.planner.pairs import DEVICE, PAIR, composed_profile
from tools.iid_trace import synthesise_trace

TRACE = with_guesses(synthesise_trace((0.7, 0.15, 0.05), prompt_lengths=(40, 40), num_tokens=48, seed=1))
PROFILE = composed_profile(num_devices=4)
GOAL = Goal()
EFFORT = Budget(prompt_indices=(0, 1), max_new_tokens=48, seeds=(0,))
SPLIT = Option.placed(make_policy("swiftspec", verify_rows=8), (2, 1))
SERIAL = Option.placed(make_policy("serial_tree", verify_rows=8), (3,))


def ranked(option: Option, profile: Profile = PROFILE) -> RankedOption:
    (outcome,) = Evaluator(profile, TRACE, num_jobs=1).run([option], EFFORT)
    return RankedOption.of(outcome, GOAL)


def rows(
    *,
    chosen: Option = SPLIT,
    others: tuple[Option, ...] = (SERIAL,),
    profile: Profile = PROFILE,
    changes: Changes | None = None,
    memory: MemoryModel | None = None,
) -> dict[str, Sensitivity]:
    table = sensitivities(
        profile=profile,
        trace=TRACE,
        memory=memory,
        goal=GOAL,
        chosen=ranked(chosen, profile),
        others=[ranked(other, profile) for other in others],
        budget=EFFORT,
        num_jobs=1,
        changes=changes or Changes(),
        num_devices=3,
    )
    return {row.change: row for row in table}


def test_a_weaker_draft_is_right_less_often_at_every_rank() -> None:
    long = with_guesses(synthesise_trace((0.6, 0.2), prompt_lengths=(10,) * 4, num_tokens=5000, seed=1))
    weaker = weakened(long, 0.1, seed=0)
    assert weaker.rank_acceptance(2) == pytest.approx([0.9 * share for share in long.rank_acceptance(2)], rel=0.02)
    for prompt, before in zip(weaker.prompts, long.prompts, strict=True):
        missed = prompt.ranks != before.ranks
        for guesser in Guesser:
            assert not (prompt.guesses[guesser].tokens[missed] == prompt.target_tokens[missed, None]).any()
            assert np.array_equal(prompt.guesses[guesser].tokens[~missed], before.guesses[guesser].tokens[~missed])
    assert weakened(long, 0.0, seed=0).rank_acceptance(2) == long.rank_acceptance(2)


def test_a_longer_prompt_keeps_its_output() -> None:
    (prompt, _) = lengthened(TRACE, 4).prompts
    assert prompt.prompt_length == 160
    assert np.array_equal(prompt.target_tokens, TRACE.prompts[0].target_tokens)


def test_every_change_has_a_row() -> None:
    table = rows()
    assert list(table) == [
        "acceptance -10 %",
        "all-reduce +20 %",
        "draft forwards +20 %",
        "prompts 4 x as long",
        "another device",
    ]
    planned = ranked(SPLIT).tokens_per_s
    assert table["another device"].tokens_per_s == pytest.approx(planned)
    for change in list(table)[:4]:
        assert table[change].tokens_per_s < planned


def test_a_slower_draft_costs_a_serial_policy_its_share_of_the_round() -> None:
    row = rows(chosen=SERIAL, others=())["draft forwards +20 %"]
    faster = rows(chosen=SERIAL, others=(), changes=Changes(slower=0.0))["draft forwards +0 %"]
    assert faster.tokens_per_s == pytest.approx(ranked(SERIAL).tokens_per_s)
    assert 0.8 < row.tokens_per_s / faster.tokens_per_s < 0.97


def test_a_rival_that_gains_by_a_change_takes_the_choice() -> None:
    dear = rows(chosen=SERIAL, others=(SPLIT,), changes=Changes(slower=3.0))["draft forwards +300 %"]
    assert dear.changes_choice
    assert dear.best == SPLIT.describe()
    assert dear.best_tokens_per_s > dear.tokens_per_s
    alone = rows(chosen=SERIAL, others=(), changes=Changes(slower=3.0))["draft forwards +300 %"]
    assert not alone.changes_choice
    assert (alone.best, alone.best_tokens_per_s) == (SERIAL.describe(), alone.tokens_per_s)


def test_another_device_goes_to_either_role() -> None:
    row = rows(others=())["another device"]
    assert row.best.startswith(("swiftspec 3+1", "swiftspec 2+2", "swiftspec 2+1"))
    assert row.changes_choice == (not row.best.startswith("swiftspec 2+1"))


def test_a_measured_profile_has_no_all_reduce_to_slow_down_and_ends_at_its_contexts() -> None:
    table = rows(
        chosen=Option.placed(SPLIT.policy, (1, 1)), others=(), profile=machine_profile(), changes=Changes(longer=20)
    )
    assert list(table) == ["acceptance -10 %", "draft forwards +20 %"]


def test_another_profile_prices_longer_prompts() -> None:
    asked: list[int] = []

    def at_context(context: int) -> Profile:
        asked.append(context)
        return PROFILE

    assert "prompts 4 x as long" in rows(changes=Changes(at_context=at_context))
    assert asked == [4 * 40 + 48]


def test_a_choice_that_no_longer_fits_is_beaten() -> None:
    tight = replace(DEVICE, memory_bytes=22_000_000_000)
    memory = MemoryModel(device=tight, specs=PAIR, quantisation=dict.fromkeys(Role, "int4"))
    assert memory.deficit(SERIAL, context=4 * 40 + 48) < 0 < memory.deficit(SPLIT, context=4 * 40 + 48)
    row = rows(memory=memory)["prompts 4 x as long"]
    assert (row.tokens_per_s, row.changes_choice, row.best) == (0.0, True, SERIAL.describe())
