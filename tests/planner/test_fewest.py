"""The fewest devices that reach a speed, against every option on every split simulated in full."""

from functools import cache

import pytest

from swiftspec.plan import Goal, Objective
from swiftspec.planner.evaluation import Effort, Evaluator
from swiftspec.planner.space import feasible_options
from tests.planner.test_quick import MEMORY, PROFILE, TRACE, plan

NUM_DEVICES = 4
POLICY = "serial_tree"


@cache
def best_by_devices() -> dict[int, float]:
    """Tokens/s of the best option on exactly so many devices: all options of a few policies, the whole trace."""
    options, _ = feasible_options(PROFILE, TRACE, num_devices=NUM_DEVICES, memory=MEMORY)
    tried = [option for option in options if option.policy.name == POLICY]
    whole = Effort(prompt_indices=(0, 1, 2, 3), max_new_tokens=32, seeds=(0,))
    outcomes = Evaluator(PROFILE, TRACE, num_jobs=1).run(tried, whole, done=lambda _: None)
    best: dict[int, float] = {}
    for outcome in outcomes:
        count = outcome.option.num_devices
        best[count] = max(best.get(count, 0.0), outcome.tokens_per_s)
    return best


if __name__ == "__main__":
    import time

    t = time.time()
    print(best_by_devices(), time.time() - t)
    for policy in ("swiftspec", "serial_chain", "serial_tree"):
        POLICY = policy
        best_by_devices.cache_clear()
        options, _ = feasible_options(PROFILE, TRACE, num_devices=NUM_DEVICES, memory=MEMORY)
        print(policy, sum(o.policy.name == policy for o in options))
        t = time.time()
        print(best_by_devices(), time.time() - t)
