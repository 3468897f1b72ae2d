"""Requests of an engine that serves, with a draft server: their programs, and how long a step waits for drafts."""

from collections.abc import Mapping
from statistics import fmean

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, Request
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import drafts_elsewhere
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.recovery import ServedDraft, served_patience_s, served_target
from swiftspec.simulator.latency import LatencyTable
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase


def served_programs(policy: Policy, request: Request, *, patience_s: float) -> Mapping[Role, Program]:
    """The programs of a request that the draft server learns of after its prompt has been read."""
    target = served_target(policy, request, fallback=Autoregressive(), patience_s=lambda: patience_s)
    most = len(request.prompt) + request.max_new_tokens
    draft = ServedDraft(policy, max_tokens=most, mask_token=request.mask_token)
    return {Role.TARGET: target.run(), Role.DRAFT: draft.run()}


def usual_patience_s(
    prices: LatencyTable,
    policy: Policy,
    trace: AcceptanceTrace,
    degrees: Mapping[Role, int],
    ranks: Mapping[Role, int],
    *,
    sequences: int,
) -> float | None:
    """Longest wait for drafts of a step of so many requests; None unless an engine asks a server for the drafts."""
    if prices.latencies.apart is None or not drafts_elsewhere(policy):
        return None
    context = round(fmean(prompt.prompt_length for prompt in trace.prompts))
    rows, degree = sequences * policy.target_rows, degrees[Role.TARGET]
    key = StepKey(Role.TARGET, Phase.VERIFY, degree, rows, context, sequences, ranks.get(Role.TARGET, 1))
    return served_patience_s(fmean(prices.forward(key).quantiles_s), sequences)
