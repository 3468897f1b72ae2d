"""A number of requests served together by one policy."""

from collections.abc import Mapping

from swiftspec.artifacts.steps import Latencies
from swiftspec.artifacts.timeline import Metrics, measure
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.serving import Job, Serving

__all__ = ["served"]

_SEED = 0


def served(
    latencies: Latencies,
    trace: AcceptanceTrace,
    policy: Policy,
    degrees: Mapping[Role, int],
    *,
    num_requests: int,
    num_jobs: int,
    prompt_tokens: int,
    output_tokens: int,
    prefill_rows: int,
) -> Metrics:
    """Metrics of `num_jobs` requests from `num_requests` clients; a client sends its next one when its last is done.

    prefill_rows: prompt tokens of one forward.
    """
    serving = Serving(
        latencies,
        trace,
        policy,
        degrees=degrees,
        admission=AdmissionLimits(max_running=num_requests, tree_rows=policy.target_rows),
        batch=BatchLimits(max_rows=num_requests * policy.target_rows, prefill_rows=prefill_rows),
    )
    jobs = [
        Job(
            arrival_s=0.0,
            prompt_index=index % len(trace.prompts),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )
        for index in range(num_jobs)
    ]
    run = serving.run(jobs, num_clients=num_requests, seed=_SEED)
    return measure([request.timeline for request in run.requests])
