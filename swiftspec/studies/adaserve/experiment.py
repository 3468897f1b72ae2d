"""AdaServe's serving experiment, simulated: six systems, three classes of requests with limits on the time per token.

Published are the step of one request, AdaServe's seconds of a verification by its rows, the shape of its trees, and how
many requests come in every ten seconds. Published, too, is the share of draft tokens that vLLM accepts; it counts those
after a rejected one, so that it is the acceptance of a single token. Decoding without a draft has nothing to fit.
Fitted, on one model at rates up to 4 requests/s, are vLLM's host time with a draft (three constants) and AdaServe's
(one). The other model has the same constants, and nothing of it was fitted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from swiftspec.acceptance.model import PRIOR, AcceptanceModel
from swiftspec.acceptance.synthesis import synthesise
from swiftspec.artifacts.profile import HostPoint, StepPoint
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.files.document import ModelRef
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.simulator.jobs import ServingRun
from swiftspec.simulator.serving import Serving
from swiftspec.studies.adaserve.requests import NUM_PROMPTS, NUM_TOKENS, Setting, jobs
from swiftspec.studies.adaserve.rule import FilledBudget, FilledBudgetSteering
from swiftspec.studies.backtest.figures import Ranks, fit_acceptance_model
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.speeds import Deployment
from swiftspec.timing.latency import NUM_QUANTILES, Provenance
from swiftspec.timing.step_costs import StepCosts
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase

_FACTS = read_facts("adaserve")
_ADASERVE = "AdaServe"
_SEED = 0
_PROMPT_TOKENS = 800
_CONTEXT = 400  # tokens of a request's text, on average
_VLLM_PROMPT_TOKENS = 2048  # of a step
_MOST_KNOWN_ROWS = 64  # of a composed verification; beyond them its seconds are those of a prompt
MODELS = tuple(_FACTS["models"])
_ROWS = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class _System:
    """How a baseline serves: its draft tokens, and whether it reads prompts in steps of their own."""

    num_draft_tokens: int = 0
    prompts_apart: bool = True

    @property
    def policy(self) -> Policy:
        if self.num_draft_tokens:
            return make_policy("serial_chain", num_draft_tokens=self.num_draft_tokens)
        return make_policy("autoregressive")


_BASELINES: Mapping[str, _System] = {
    "Sarathi-Serve": _System(prompts_apart=False),
    "vLLM": _System(),
    "vLLM-spec(4)": _System(num_draft_tokens=4),
    "vLLM-spec(6)": _System(num_draft_tokens=6),
    "vLLM-spec(8)": _System(num_draft_tokens=8),
}
SYSTEMS = (_ADASERVE, *_BASELINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a system made of a list of requests.

    attainment: share of the requests within their limit on the time per token. goodput_tokens_per_s: tokens of those
    requests over the whole time. tokens_per_round: output tokens per verification of a request, the bonus included.
    """

    attainment: float
    goodput_tokens_per_s: float
    tokens_per_round: float

    @classmethod
    def of(cls, run: ServingRun) -> "Outcome":
        kept = [request for request in run.requests if request.timeline.tpot_s <= (request.job.tpot_s or 0.0)]
        num_tokens = sum(request.job.output_tokens for request in run.requests)
        num_rounds = sum(span.phase is Phase.VERIFY for request in run.requests for span in request.spans)
        return cls(
            attainment=len(kept) / len(run.requests),
            goodput_tokens_per_s=sum(request.job.output_tokens for request in kept) / run.end_s,
            tokens_per_round=num_tokens / num_rounds,
        )


def serve(name: str, model: str, setting: Setting, *, windows: slice = slice(None)) -> Outcome:
    """Serve the requests of a setting by a system, with one of `MODELS`.

    windows: those of ten seconds each whose requests are served.
    """
    serving = _adaserve(model) if name == _ADASERVE else _baseline(_BASELINES[name], model)
    requests = jobs(setting, step_s=_FACTS["models"][model]["step_s"], windows=windows)
    return Outcome.of(serving.run(requests, seed=_SEED))


def deployment(model: str) -> Deployment:
    """The pair on its devices."""
    return Deployment.of(_FACTS["models"][model]["deployment"])


def degrees(model: str) -> dict[Role, int]:
    """The draft lies on one of the target's devices."""
    return {Role.TARGET: deployment(model).num_devices, Role.DRAFT: 1}


def _baseline(system: _System, model: str) -> Serving:
    policy = system.policy
    most = _FACTS["vllm_max_running"]
    return Serving(
        vllm_latencies(model, has_draft=system.num_draft_tokens > 0),
        _trace(model),
        policy,
        degrees=degrees(model),
        admission=AdmissionLimits(max_running=most, tree_rows=policy.target_rows),
        batch=BatchLimits(
            max_rows=most * policy.target_rows, prefill_rows=_VLLM_PROMPT_TOKENS, prompts_apart=system.prompts_apart
        ),
    )


def _adaserve(model: str) -> Serving:
    facts = _FACTS["adaserve"] | _FACTS["models"][model]
    depth, width = facts["most_depth"], facts["width"]
    # As many nodes as a beam search of that width verifies, the root included.
    policy = make_policy("eagle2_tree", verify_rows=1 + depth * width, top_k=width, depth=depth - 1)
    rule = FilledBudget(
        budget_rows=facts["budget_rows"],
        draft_rows=facts["draft_rows"],
        least_depth=facts["least_depth"],
        most_depth=depth,
        most_width=width,
    )
    latencies, groups = _adaserve_latencies(model), degrees(model)
    return Serving(
        latencies,
        _trace(model),
        policy,
        degrees=groups,
        admission=AdmissionLimits(max_running=facts["max_running"], tree_rows=policy.target_rows),
        batch=BatchLimits(max_rows=facts["budget_rows"], prefill_rows=facts["chunk_tokens"]),
        steering=FilledBudgetSteering(
            rule, StepCosts.of(policy, latencies, degrees=groups, ranks={}, context=_CONTEXT)
        ),
    )


@cache
def vllm_latencies(model: str, *, has_draft: bool) -> Latencies:
    """vLLM 0.8.4's with the pair on its devices; a plain step of one request is as long as published.

    With a draft, vLLM verifies every row as a sequence of its own, which costs its host time.
    """
    fitted = _FACTS["fitted"]
    step_s = {rows: _composed_s(model, rows) for rows in (1, 2, 4, 8, 16, 32, _MOST_KNOWN_ROWS, *_ROWS)}
    more_s = _FACTS["models"][model]["step_s"] - step_s[1]
    round_s, row_s, draft_s = (
        fitted[name] if has_draft else 0.0 for name in ("vllm_round_s", "vllm_row_s", "vllm_draft_s")
    )
    verify_s = {rows: seconds + more_s + round_s + row_s * rows for rows, seconds in step_s.items()}
    return _latencies(model, verify_s, prompt_s=more_s, draft_s=draft_s)


@cache
def _adaserve_latencies(model: str) -> Latencies:
    """AdaServe's. Its verifications are published of one model: those of others are as much longer than composed."""
    facts = _FACTS["adaserve"]
    verify_s = {1: _FACTS["models"][model]["step_s"]}
    for rows, seconds in facts["verify_s"].items():
        verify_s[int(rows)] = seconds + _composed_s(model, int(rows)) - _composed_s(facts["verified_model"], int(rows))
    return _latencies(model, verify_s, prompt_s=0.0, draft_s=_FACTS["fitted"]["adaserve_draft_s"])


def _latencies(model: str, verify_s: Mapping[int, float], *, prompt_s: float, draft_s: float) -> Latencies:
    """A pair's latencies with other verifications and host times.

    verify_s: seconds of a verification by its rows, the host's included. prompt_s, draft_s: the host's around a step of
    prompts alone, and around a draft forward.
    """
    profile = deployment(model).profile
    kept = (step for step in profile.steps if step.role is not Role.TARGET or step.phase is not Phase.VERIFY)
    degree = degrees(model)[Role.TARGET]
    verifications = (
        StepPoint(
            quantiles_s=(seconds,) * NUM_QUANTILES,
            num_samples=1,
            provenance=Provenance.ASSUMED,
            role=Role.TARGET,
            phase=Phase.VERIFY,
            degree=degree,
            peer_busy=False,
            rows=rows,
            context=0,
        )
        for rows, seconds in verify_s.items()
    )
    host = (
        HostPoint(
            quantiles_s=(seconds,) * NUM_QUANTILES, num_samples=1, provenance=Provenance.ASSUMED, phase=phase, rows=1
        )
        for phase, seconds in ((Phase.PREFILL, prompt_s), (Phase.EXPAND, draft_s))
        if seconds
    )
    changed = profile.model_copy(update={"steps": (*kept, *verifications), "host": tuple(host)})
    return replace(changed.latencies, host_share=0.0)


def _composed_s(model: str, rows: int) -> float:
    """Mean seconds of a verification, or of a prompt where no verification of so many rows is known."""
    phase, context = (Phase.VERIFY, _CONTEXT) if rows <= _MOST_KNOWN_ROWS else (Phase.PREFILL, 0)
    key = StepKey(Role.TARGET, phase, degrees(model)[Role.TARGET], rows, context)
    return deployment(model).profile.latencies.step(key).mean_s


@cache
def acceptance_model(model: str) -> AcceptanceModel:
    """Tokens that are accepted independently of each other, with the published share."""
    prior = PRIOR.model_copy(update={"persistence": _FACTS["fitted"]["persistence"]})
    share = Ranks(values=(_FACTS["models"][model]["accepted_share"],))
    return fit_acceptance_model([share], prior=prior, fields=("mean_logit",)).acceptance_model


@cache
def _trace(model: str) -> AcceptanceTrace:
    synthetic = ModelRef(model="synthetic", dtype="bf16")
    return synthesise(
        acceptance_model(model),
        num_prompts=NUM_PROMPTS,
        prompt_length=_PROMPT_TOKENS,
        num_tokens=NUM_TOKENS,
        seed=_SEED,
        target=synthetic,
        draft=synthetic,
    )
