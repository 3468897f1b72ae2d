"""Routers: round robin and the least loaded replica."""

from collections import Counter

import numpy as np

from swiftspec.scheduler.routing import ROUTERS, Router


def test_round_robin_ignores_the_load() -> None:
    router = Router("round-robin")
    assert [router.choose([7, 0, 3]) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_least_loaded_is_chosen_and_equals_take_turns() -> None:
    router = Router("least-loaded")
    assert router.choose([2, 1, 3]) == 1
    assert [router.choose([0, 0, 0]) for _ in range(4)] == [2, 0, 1, 2]


def test_both_give_equal_shares_to_replicas_that_are_equally_fast() -> None:
    for rule in ROUTERS:
        router, load, given = Router(rule), [0] * 5, Counter[int]()
        rng = np.random.default_rng(0)
        for _ in range(2000):
            chosen = router.choose(load)
            given[chosen] += 1
            load[chosen] += 1
            busy = [index for index, number in enumerate(load) if number]
            if len(busy) > 2:
                load[rng.choice(busy)] -= 1
        assert max(given.values()) < 1.15 * min(given.values())
