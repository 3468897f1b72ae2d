"""AdaServe's serving experiment, simulated: six systems, three classes of requests with limits on the time per token.

Inputs are the published step of one request and the published acceptance of chains of 4, 6 and 8 tokens. Fitted, at
the lower rates, are what a further request costs in a step, and what a draft forward takes in vLLM and in AdaServe,
several times what the devices need. Requests are drawn with the rates, spread of gaps, classes and mean lengths of the
artifact's trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from swiftspec.acceptance import AcceptanceModel, synthesise
from swiftspec.acceptance.fitting import Length, fit_acceptance_model
from swiftspec.acceptance.model import PRIOR, tree_acceptance
from swiftspec.artifacts.document import ModelRef
from swiftspec.artifacts.profile import HostPoint
from swiftspec.artifacts.step_costs import StepCosts
from swiftspec.artifacts.steps import Latencies
from swiftspec.artifacts.timeline import Phase
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.backtest.speeds import Deployment
from swiftspec.files.reading import parse_json
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Steering
from swiftspec.scheduler.controls.named import named_control
from swiftspec.simulator.serving import Job, Serving

__all__ = ["SYSTEMS", "attainment", "published"]

_NUM_REQUESTS, _SEED = 600, 0
_NUM_PROMPTS, _NUM_TOKENS, _PROMPT_TOKENS = 64, 256, 800
_CONTEXT = 400  # tokens of a request's text, on average


@dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """How a system serves: its policy and shape, its control, the prompt tokens of a step, and whose drafts it has."""

    policy: str
    shape: Mapping[str, int]
    prefill_rows: int
    drafting: str = "vllm_draft_s"
    control: str | None = None

    def build(self) -> Policy:
        return make_policy(self.policy, **self.shape)


def _chain(num_draft_tokens: int) -> _System:
    return _System(policy="serial_chain", shape={"num_draft_tokens": num_draft_tokens}, prefill_rows=2048)


SYSTEMS: Mapping[str, _System] = {
    # Beam search of depth 8 and width 3, and the paper's selection.
    "AdaServe": _System(
        policy="eagle2_tree",
        shape={"verify_rows": 16, "top_k": 3, "depth": 7},
        prefill_rows=1024,
        drafting="adaserve_draft_s",
        control="slo",
    ),
    "Sarathi-Serve": _System(policy="autoregressive", shape={}, prefill_rows=512),
    "vLLM": _System(policy="autoregressive", shape={}, prefill_rows=2048),
    "vLLM-spec(4)": _chain(4),
    "vLLM-spec(6)": _chain(6),
    "vLLM-spec(8)": _chain(8),
}


@cache
def published() -> Mapping[str, Any]:
    """The published figures."""
    content: Mapping[str, Any] = parse_json(files(__package__).joinpath("data", "adaserve.json").read_bytes())
    return content


def attainment(name: str, rate: float, *, num_requests: int = _NUM_REQUESTS) -> float:
    """Share of the requests within their limit on the time per token, by a system at a rate in requests/s."""
    system, facts = SYSTEMS[name], published()
    policy, jobs = system.build(), _jobs(rate, num_requests)
    degrees = {Role.TARGET: facts["num_devices"], Role.DRAFT: facts["num_devices"]}
    latencies = _latencies(facts["fitted"][system.drafting])
    steering = None
    if system.control is not None:
        costs = StepCosts.of(policy, latencies, degrees=degrees, ranks={}, context=_CONTEXT)
        steering = Steering.of(policy, named_control(system.control), costs)
    serving = Serving(
        latencies,
        _trace(),
        policy,
        degrees=degrees,
        admission=AdmissionLimits(max_running=facts["max_running"], tree_rows=policy.target_rows),
        batch=BatchLimits(max_rows=facts["budget_rows"], prefill_rows=system.prefill_rows),
        steering=steering,
    )
    kept = 0
    for request in serving.run(jobs, seed=_SEED).requests:
        assert request.job.tpot_s is not None
        kept += request.timeline.tpot_s <= request.job.tpot_s
    return kept / num_requests


@cache
def _latencies(draft_s: float) -> Latencies:
    """Those of the pair on its devices; a plain step of one request is as long as published.

    draft_s: host time of a draft forward.
    """
    facts = published()
    profile = Deployment.of(facts).profile
    plain = StepCosts.of(
        make_policy("autoregressive"),
        profile.latencies,
        degrees={Role.TARGET: facts["num_devices"]},
        ranks={},
        context=_CONTEXT,
    )
    more_s = {Phase.VERIFY: max(0.0, facts["step_s"] - plain.verify_s(1, 1)), Phase.EXPAND: draft_s}

    def later(point: HostPoint) -> HostPoint:
        extra_s = more_s.get(point.phase, 0.0)
        return point.model_copy(update={"quantiles_s": tuple(value + extra_s for value in point.quantiles_s)})

    slower = profile.model_copy(update={"host": tuple(map(later, profile.host))})
    return replace(slower.latencies, host_share=facts["fitted"]["host_share"])


@cache
def _acceptance_model() -> AcceptanceModel:
    """Acceptance with the published tokens of all three chains."""

    def length_of(depth: int) -> Length:
        return Length(
            value=published()["accepted_tokens"][str(depth)],
            of=lambda acceptance_model: sum(tree_acceptance(acceptance_model, (1,) * depth)),
        )

    fields = ("mean_logit", "persistence", "spread")
    return fit_acceptance_model([length_of(depth) for depth in (4, 6, 8)], prior=PRIOR, fields=fields).acceptance_model


@cache
def _trace() -> AcceptanceTrace:
    model = ModelRef(model="synthetic", dtype="bf16")
    return synthesise(
        _acceptance_model(),
        num_prompts=_NUM_PROMPTS,
        prompt_length=_PROMPT_TOKENS,
        num_tokens=_NUM_TOKENS,
        seed=_SEED,
        target=model,
        draft=model,
    )


def _jobs(rate: float, num_requests: int) -> list[Job]:
    """Requests at a rate: gamma gaps, classes at random, log-normal prompts."""
    facts, rng = published(), np.random.default_rng(_SEED)
    shape = 1 / facts["gap_cv"] ** 2
    gaps_s = rng.gamma(shape, 1 / (shape * rate), num_requests)
    arrivals_s = np.cumsum(gaps_s * num_requests / rate / gaps_s.sum()).tolist()
    classes = rng.choice(len(facts["classes"]), size=num_requests, p=[each["share"] for each in facts["classes"]])
    spread = rng.lognormal(-0.125, 0.5, num_requests)  # of mean 1
    outputs = rng.integers(2 * facts["output_tokens"] - _NUM_TOKENS, _NUM_TOKENS, num_requests, endpoint=True)
    prompts = rng.integers(_NUM_PROMPTS, size=num_requests)
    jobs = []
    for index in range(num_requests):
        of_class = facts["classes"][classes[index]]
        jobs.append(
            Job(
                arrival_s=arrivals_s[index],
                prompt_index=int(prompts[index]),
                prompt_tokens=max(2, round(of_class["prompt_tokens"] * spread[index])),
                output_tokens=int(outputs[index]),
                tpot_s=of_class["tpot_s"],
            )
        )
    return jobs
