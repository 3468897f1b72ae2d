"""A client that sends many requests at once, and what others feel of it."""

from dataclasses import replace

import numpy as np

from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.simulator.jobs import Job
from tests.simulator.test_serving import linear_profile, serving
from tools.iid_trace import synthesise_trace

NUM_TOKENS, BASE_S, ROW_S = 20, 0.010, 0.002


def p95_ttft_s(asked: list[Job]) -> float:
    trace = synthesise_trace((1.0,), prompt_lengths=(16,), num_tokens=NUM_TOKENS, seed=0)
    run = serving(Autoregressive(), linear_profile(base_s=BASE_S, row_s=ROW_S), trace, prefill_rows=16).run(asked)
    # The flood's jobs are the first of all; who is not of it is told by the time of arrival.
    return float(np.percentile([each.timeline.ttft_s for each in run.requests if each.job.arrival_s > 0], 95))


def test_a_flood_of_one_client_delays_another_by_a_place_that_becomes_free() -> None:
    times_s = np.cumsum(np.random.default_rng(3).exponential(0.5, 40)).tolist()
    others = [Job(arrival_s=time_s, prompt_index=0, output_tokens=NUM_TOKENS, client="other") for time_s in times_s]
    flood = [Job(prompt_index=0, output_tokens=10 + number % 21, client="flood") for number in range(300)]
    idle_s, flooded_s = p95_ttft_s(others), p95_ttft_s([*flood, *others])
    first_come_s = p95_ttft_s([*(replace(job, client="other") for job in flood), *others])
    # Steps are longer with eight requests, whoever they are of.
    longer = (BASE_S + 8 * ROW_S) / (BASE_S + ROW_S)
    assert flooded_s <= 1.3 * longer * idle_s
    assert first_come_s > 100 * flooded_s
