"""A draft on a device of its own for batches of requests: SpecActor in SGLang, predicted from plain decoding.

Published are a 70B target on eight devices and a 1B draft, with five draft tokens, for 1 to 64 requests at once. The
kind of device is not: plain decoding's growth with the batch is that of the H100's op tables with a constant host time.
Fitted are two constants: that host time, on plain decoding, and how much of it the decoupled engine saves. The policy
is PEARL, on which the authors build.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import Any

import numpy as np

from swiftspec.acceptance.model import PRIOR, tree_acceptance
from swiftspec.acceptance.synthesis import synthesise
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.jobs import Job
from swiftspec.simulator.serving import Serving
from swiftspec.studies.backtest.figures import Length, fit_acceptance_model
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import Constant, Row
from swiftspec.studies.backtest.speeds import Deployment
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase

_FACTS = read_facts("decoupled")
_POLICIES = {"plain": ("autoregressive", {}), "decoupled": ("pearl", {"num_draft_tokens": 5})}
_HOSTS_S = (0.003, 0.008)  # a token's time rises in proportion to the host's: two points are a line
_PROMPT_TOKENS, _OUTPUT_TOKENS, _LEAST_JOBS = 100, 128, 16
_SEED = 0
_Line = tuple[float, float]  # seconds per token without host time, and per second of it


def decoupled_rows() -> tuple[list[Row], list[Constant]]:
    """Rows of plain and of decoupled decoding, and the two constants."""
    rows, hosts_s = [], {}
    for mode in _POLICIES:
        lines, speeds = list(_lines(mode)), _FACTS[f"{mode}_tokens_per_s"]
        hosts_s[mode] = _host_s(lines, speeds)
        for index, (requests, line, speed) in enumerate(zip(_FACTS["requests"], lines, speeds, strict=True)):
            left_out = _host_s(lines[:index] + lines[index + 1 :], speeds[:index] + speeds[index + 1 :])
            rows.append(
                Row(
                    name=f"llama-3.3-70b + llama-3.2-1b, 8+1 devices, sglang, {mode}, {requests} requests",
                    quantity="tokens/s/user",
                    published=speed,
                    predicted=_speed(line, hosts_s[mode]),
                    error_leave_one_out=_speed(line, left_out) / speed - 1,
                    source=_FACTS["source"],
                )
            )
    saved_s = hosts_s["plain"] - hosts_s["decoupled"]
    on = "SpecActor's table of math prompts"
    return rows, [
        Constant(name="sglang_host_s", value=hosts_s["plain"], unit="s", fitted_on=f"{on}, plain decoding"),
        Constant(name="decoupled_host_saved_s", value=saved_s, unit="s", fitted_on=f"{on}, decoupled decoding"),
    ]


def _host_s(lines: Sequence[_Line], speeds: Sequence[float]) -> float:
    """Host time of a target step with the least squared relative error of the speeds."""
    # In seconds per token the problem is linear.
    wanted = np.array([(1 / speed - base) * speed for (base, _), speed in zip(lines, speeds, strict=True)])
    slopes = np.array([slope * speed for (_, slope), speed in zip(lines, speeds, strict=True)])
    return float(wanted @ slopes / (slopes @ slopes))


def _speed(line: _Line, host_s: float) -> float:
    base, slope = line
    return 1 / (base + slope * host_s)


def _lines(mode: str) -> Iterator[_Line]:
    """Time per token as a function of the host time, for every number of requests."""
    low_s, high_s = _HOSTS_S
    for requests in _FACTS["requests"]:
        low, high = (_tpot_s(mode, requests, host_s) for host_s in _HOSTS_S)
        slope = (high - low) / (high_s - low_s)
        yield low - slope * low_s, slope


def _tpot_s(mode: str, num_requests: int, host_s: float) -> float:
    """Mean time per token while so many requests are served at once."""
    name, shape = _POLICIES[mode]
    policy, trace = make_policy(name, **shape), _trace()
    serving = Serving(
        _latencies(host_s),
        trace,
        policy,
        degrees={Role.TARGET: _FACTS["target_devices"], Role.DRAFT: _FACTS["num_devices"] - _FACTS["target_devices"]},
        admission=AdmissionLimits(max_running=num_requests, tree_rows=policy.target_rows),
        batch=BatchLimits(max_rows=num_requests * policy.target_rows, prefill_rows=2048),
    )
    jobs = [
        Job(
            arrival_s=0.0,
            prompt_index=index % len(trace.prompts),
            prompt_tokens=_PROMPT_TOKENS,
            output_tokens=_OUTPUT_TOKENS,
        )
        for index in range(max(_LEAST_JOBS, 2 * num_requests))
    ]
    return mean(request.timeline.tpot_s for request in serving.run(jobs, seed=_SEED).requests)


@cache
def _latencies(host_s: float) -> Latencies:
    """Those of the pair on its devices, with this host time around a verification of any number of requests."""
    profile = Deployment.of(_FACTS).profile
    host = tuple(
        point.model_copy(update={"quantiles_s": (host_s,) * len(point.quantiles_s)})
        if point.phase is Phase.VERIFY
        else point
        for point in profile.host
    )
    return replace(profile.model_copy(update={"host": host}).latencies, host_share=0.0)


@cache
def _trace() -> AcceptanceTrace:
    """Texts whose drafts are accepted as published."""

    def accepted(model: Any) -> float:
        return sum(tree_acceptance(model, (1,) * _FACTS["num_draft_tokens"]))

    length = Length(value=mean(_FACTS["accepted_tokens"]), of=accepted)
    model = ModelRef(model="synthetic", dtype=_FACTS["quant"])
    return synthesise(
        fit_acceptance_model([length], prior=PRIOR, fields=("mean_logit",)).acceptance_model,
        num_prompts=64,
        prompt_length=_PROMPT_TOKENS,
        num_tokens=_OUTPUT_TOKENS,
        seed=_SEED,
        target=model,
        draft=model,
    )
