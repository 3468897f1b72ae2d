"""A published loss by speculation at large batches: Llama-70B with a 1B draft in vLLM (vllm-project/vllm issue 17984).

It gains at small batches and loses at 32 requests. No figure is published, so it is no row of the backtest. Predicted
is the gain of chains, all requests in lock step, in two engines: vLLM of that month, whose constants are fitted to
other figures of the same pair (see `adaserve`), and one that takes no time on the host.
"""

from dataclasses import dataclass

from swiftspec.acceptance.model import tree_acceptance
from swiftspec.acceptance.proxy_pairs import acceptance_for
from swiftspec.policies.effects import Role
from swiftspec.studies.adaserve.experiment import MODELS, degrees, vllm_latencies
from swiftspec.studies.backtest.speeds import Deployment
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase

_TARGET, _DRAFT = "llama-3.3-70b", "llama-3.2-1b"
_MEASURED = MODELS[0]  # the same pair, to whose figures the constants are fitted
_CONTEXT = 500  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Latencies without and with a draft, the devices of each role, and the host's time around a draft forward."""

    plain: Latencies
    drafted: Latencies
    degrees: dict[Role, int]
    draft_host_s: float

    def step_s(self, latencies: Latencies, role: Role, rows: int) -> float:
        """Mean seconds of a target's verification or a draft's forward."""
        phase = Phase.VERIFY if role is Role.TARGET else Phase.EXPAND
        return latencies.step(StepKey(role, phase, self.degrees[role], rows, _CONTEXT)).mean_s


def vllm_in_2025() -> Engine:
    """vLLM 0.8.4 on four A100s, the draft on one of them: it verifies every row as a sequence of its own."""
    drafted = vllm_latencies(_MEASURED, has_draft=True)
    host = drafted.host_latency(Phase.EXPAND)
    assert host is not None
    return Engine(
        plain=vllm_latencies(_MEASURED, has_draft=False),
        drafted=drafted,
        degrees=degrees(_MEASURED),
        draft_host_s=host.mean_s,
    )


def without_host_time() -> Engine:
    """Composed forwards alone, on four H100s."""
    deployment = Deployment(device="h100-sxm", target=_TARGET, draft=_DRAFT, quant="bf16", num_devices=4)
    latencies = deployment.profile.latencies
    return Engine(plain=latencies, drafted=latencies, degrees=dict.fromkeys(Role, 4), draft_host_s=0.0)


def batch_gain(
    engine: Engine, num_requests: int, *, num_draft_tokens: int = 5, accepted_share: float | None = None
) -> float:
    """Predicted speed of chains over plain decoding.

    accepted_share: probability that a draft token is accepted; that of the pair's published figures if not given.
    """
    draft_s = engine.step_s(engine.drafted, Role.DRAFT, num_requests) + engine.draft_host_s
    verify_s = engine.step_s(engine.drafted, Role.TARGET, num_requests * (num_draft_tokens + 1))
    tokens = _tokens_per_round(num_draft_tokens, accepted_share)
    plain_s = engine.step_s(engine.plain, Role.TARGET, num_requests)
    return tokens * plain_s / (num_draft_tokens * draft_s + verify_s)


def _tokens_per_round(num_draft_tokens: int, accepted_share: float | None) -> float:
    if accepted_share is not None:
        return sum(accepted_share**level for level in range(num_draft_tokens + 1))
    model = acceptance_for(_TARGET, _DRAFT).acceptance_model
    return 1 + sum(tree_acceptance(model, (1,) * num_draft_tokens))
