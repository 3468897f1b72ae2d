"""The queue behind the law, stepped token by token: latencies do not depend on how outputs' lengths are distributed."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from swiftspec.studies.latency_law.law import LatencyLaw

FIXED_S, EACH_S, TOKENS = 0.010, 0.001, 50
LAW = LatencyLaw.of_steps(num_steps=TOKENS, fixed_s=FIXED_S, each_s=EACH_S)
NUM_REQUESTS = 3000


def latencies_s(
    arrivals_s: npt.NDArray[np.float64], steps: npt.NDArray[np.int64], most: int = NUM_REQUESTS
) -> Iterator[float]:
    """Latencies of requests in a batch whose every step takes FIXED_S + EACH_S B seconds.

    Steps are numbered: a request that joins before step s with n steps leaves after step s + n - 1.
    """
    now_s, step, next_one = 0.0, 0, 0
    leaving: dict[int, list[int]] = {}
    running = 0
    while next_one < len(steps) or running:
        if not running:
            now_s = max(now_s, float(arrivals_s[next_one]))
        while next_one < len(steps) and running < most and arrivals_s[next_one] <= now_s:
            leaving.setdefault(step + int(steps[next_one]), []).append(next_one)
            next_one, running = next_one + 1, running + 1
        now_s += FIXED_S + EACH_S * running
        step += 1
        for number in leaving.pop(step, ()):
            running -= 1
            yield now_s - float(arrivals_s[number])


def lengths(kind: str, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Steps of all requests, TOKENS in the mean."""
    if kind == "geometric":
        return random.geometric(1 / TOKENS, NUM_REQUESTS)
    if kind == "two values":
        return random.choice([TOKENS // 10, 2 * TOKENS - TOKENS // 10], NUM_REQUESTS)
    return np.full(NUM_REQUESTS, TOKENS)


@pytest.mark.parametrize("kind", ["fixed", "geometric", "two values"])
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_the_law_is_the_mean_of_a_batch_that_all_share(kind: str, load: float) -> None:
    random = np.random.default_rng(5)
    rate = load * LAW.saturation
    arrivals_s = np.cumsum(random.exponential(1 / rate, NUM_REQUESTS))
    steps = lengths(kind, random)
    # A sample's own load, not the one drawn from, or the test would check the generator of random numbers.
    law = LatencyLaw.of_steps(num_steps=float(steps.mean()), fixed_s=FIXED_S, each_s=EACH_S)
    found_s = np.mean(list(latencies_s(arrivals_s, steps)))
    assert found_s == pytest.approx(law.latency_s(NUM_REQUESTS / float(arrivals_s[-1])), rel=0.06)


def test_a_limit_on_running_requests_is_a_birth_death_process() -> None:
    most = 4
    random = np.random.default_rng(5)
    rate = 0.7 * LAW.limited_saturation(most)
    arrivals_s = np.cumsum(random.exponential(1 / rate, NUM_REQUESTS))
    steps = lengths("geometric", random)
    law = LatencyLaw.of_steps(num_steps=float(steps.mean()), fixed_s=FIXED_S, each_s=EACH_S)
    found_s = np.mean(list(latencies_s(arrivals_s, steps, most)))
    rate = NUM_REQUESTS / float(arrivals_s[-1])
    assert found_s == pytest.approx(law.limited_latency_s(rate, most), rel=0.1)
    assert found_s > 1.1 * law.latency_s(rate)  # the law without a limit knows no waiting


@pytest.mark.parametrize("clients", [1, 5, 20])
def test_clients_of_a_closed_loop_find_all_others(clients: int) -> None:
    assert LAW.shared_s(clients - 1) == pytest.approx(TOKENS * (FIXED_S + EACH_S * clients))
