"""A workload as the requests of a simulation by arrays."""

import numpy as np

from swiftspec.artifacts.workload import Workload
from swiftspec.planner.under_load.served import Requests, Turn

__all__ = ["requests_of"]


def requests_of(workload: Workload, *, transfer_s: float | None = None) -> Requests:
    """The requests with what they share, and the turns that wait for answers. transfer_s: as of `Requests`."""
    turns = dict[int, Turn]()
    latest = dict[str, int]()  # request of every conversation
    for number, request in enumerate(workload.requests):
        if request.conversation is None:
            continue
        if request.think_time_s is not None:
            turns[latest[request.conversation]] = Turn(number, request.think_time_s)
        latest[request.conversation] = number
    return Requests(
        arrival_s=np.array([request.arrival_s for request in workload.requests]),
        prompt_tokens=np.array([request.prompt_tokens for request in workload.requests]),
        output_tokens=np.array([request.output_tokens for request in workload.requests]),
        segments=[request.segments for request in workload.requests],
        num_clients=workload.arrivals.num_clients if workload.is_closed else None,
        turns=turns,
        transfer_s=transfer_s,
    )
