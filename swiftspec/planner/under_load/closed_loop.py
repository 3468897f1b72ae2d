"""Closed loops of clients: the load that comparisons and schedules of drafts are made for."""

import math
from functools import lru_cache

import numpy as np

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.workload import RequestClass, Workload, WorkloadRequest
from swiftspec.files.document import Origin

__all__ = ["UNEVEN", "closed_loop_workload", "longest_request"]

_LEAST_REQUESTS, _REQUESTS_PER_CLIENT = 8, 3  # of a closed loop
# Of the lengths of outputs. Clients whose answers all have one length would stay in step in a simulation; real ones
# drift apart, as their times to the first token show: with lengths of +-10 % these are right.
UNEVEN = 0.1


@lru_cache(maxsize=64)
def closed_loop_workload(clients: int, prompt_tokens: int, output_tokens: int) -> Workload:
    """Requests of clients that each send the next one when one ends.

    Outputs have lengths within a tenth of their mean, evenly spread and in a random order, both ends included.
    """
    count = max(_LEAST_REQUESTS, _REQUESTS_PER_CLIENT * clients)
    least, most = math.ceil((1 - UNEVEN) * output_tokens), math.floor((1 + UNEVEN) * output_tokens)
    outputs = np.random.default_rng(0).permutation(np.linspace(least, most, count).round().astype(int)).tolist()
    return Workload(
        origin=Origin.here(),
        arrivals=Arrivals(process=Process.CLOSED, num_clients=clients),
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=prompt_tokens),
        output_tokens=Lengths(distribution=Distribution.UNIFORM, least=least, most=most),
        seed=0,
        classes=(RequestClass(name="client"),),
        requests=tuple(
            WorkloadRequest(arrival_s=0.0, prompt_tokens=prompt_tokens, output_tokens=tokens, class_name="client")
            for tokens in outputs
        ),
    )


def longest_request(workload: Workload) -> int:
    """Tokens of the longest request, its output included."""
    return max(request.prompt_tokens + request.output_tokens for request in workload.requests)
