"""Instances that read the prompts of a decode-only pool, by division: more of their split is not planned."""

from swiftspec.artifacts.load_metrics import LoadMetrics
from swiftspec.artifacts.under_load import DecodePool
from swiftspec.artifacts.workload import Workload
from swiftspec.costmodel.steps import StepWork
from swiftspec.planner.under_load.deployed import Deployed

__all__ = ["decode_pool"]


def decode_pool(workload: Workload, metrics: LoadMetrics, deployed: Deployed, *, transfer_s: float) -> DecodePool:
    """What the pool needs beside it.

    Parameters
    ----------
    workload : Workload
    metrics : LoadMetrics
        Of the pool, which set the rate of a closed loop.
    deployed : Deployed
        An instance that only reads prompts.
    transfer_s : float
        From a request's arrival until its cache is in the pool.
    """
    prompts = [request.prompt_tokens for request in workload.requests]
    mean = round(sum(prompts) / len(prompts))
    per_s = metrics.request_throughput if workload.rate is None else workload.rate
    return DecodePool(
        transfer_s=transfer_s,
        prompt_tokens_per_s=per_s * mean,
        prefill_tokens_per_s=_read_per_s(deployed, mean),
    )


def _read_per_s(deployed: Deployed, prompt_tokens: int) -> float:
    """Prompt tokens that an instance reads in a second, in steps that are full of whole prompts or of a part of one."""
    most = deployed.limits.step_tokens
    if prompt_tokens <= most:
        at_once = most // prompt_tokens
        work = StepWork(chunks=[(prompt_tokens, 0)] * at_once, sampled=at_once)
        return at_once * prompt_tokens / deployed.step_s(work)
    parts = [(min(most, prompt_tokens - read), read) for read in range(0, prompt_tokens, most)]
    return prompt_tokens / sum(deployed.step_s(StepWork(chunks=[part], sampled=1)) for part in parts)
