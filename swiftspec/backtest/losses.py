"""Published losses by speculation.

Qwen3.5's MTP head in vLLM, from 342 to 128 tokens/s though 97 % is accepted. Both figures are of a server's log, so the
time of prompts is in them, and the two lines have different work: 2.8 prompt tokens for each output token without the
head, 10.6 with it. The time that a prompt token costs outside decoding (its prefill, the encoding of images, waiting
for the client) follows from the first line and the predicted time of plain decoding; the second line is then predicted
from its own mix. Decoding itself is predicted to gain.

A 70B target with a 1B draft in vLLM, which gains at small batches and loses at 32 requests. Of it no figure is known,
so it is no row; `batch_gain` says what is predicted for chains in lock step.
"""

from swiftspec.acceptance import acceptance_for, tree_acceptance
from swiftspec.artifacts.metrics import Metrics
from swiftspec.artifacts.timeline import Phase
from swiftspec.backtest.published import read_facts
from swiftspec.backtest.rows import Row
from swiftspec.backtest.speeds import Deployment, decoding_by_position
from swiftspec.policies import DraftKind, Policy, make_policy
from swiftspec.policies.effects import Role

__all__ = ["batch_gain", "decoding_gain", "logged_tokens_per_s", "loss_rows"]

_FACTS = read_facts("losses")["mtp"]
_CONTEXT = 500  # tokens


def loss_rows() -> list[Row]:
    """The line with the head. Nothing is fitted to it."""
    name = "qwen3.5-0.8b + mtp, log line with the head, from the one without"
    predicted = logged_tokens_per_s(_FACTS["device"])
    return [Row.unfitted(name, "tokens/s", _FACTS["drafted"]["tokens_per_s"], predicted, _FACTS["source"])]


def logged_tokens_per_s(device: str) -> float:
    """Predicted output tokens/s of the log line with the head, on a kind of device.

    ValueError if plain decoding is predicted to be slower than the log says.
    """
    plain, drafted = _FACTS["plain"], _FACTS["drafted"]
    left = 1 - plain["tokens_per_s"] / _metrics(device, _PLAIN).decoding_tokens_per_s
    if left <= 0:
        raise ValueError(
            f"device is {device!r}, on which plain decoding is slower than {plain['tokens_per_s']} tokens/s"
        )
    prompt_token_s = left / plain["prompt_tokens_per_s"]
    outputs = drafted["tokens_per_s"] / drafted["prompt_tokens_per_s"]  # per prompt token
    return float(outputs / (prompt_token_s + outputs / _metrics(device, _DRAFTED).decoding_tokens_per_s))


def decoding_gain(device: str) -> float:
    """Predicted speed with the head over that without, prompts left out."""
    return _metrics(device, _DRAFTED).decoding_tokens_per_s / _metrics(device, _PLAIN).decoding_tokens_per_s


def batch_gain(
    num_requests: int, *, device: str = "h100-sxm", num_devices: int = 4, num_draft_tokens: int = 5
) -> float:
    """Predicted speed of chains of Llama-3.2-1B over plain decoding of Llama-3.3-70B, as many requests in lock step."""
    target, draft = "llama-3.3-70b", "llama-3.2-1b"
    deployment = Deployment(device=device, target=target, draft=draft, quant="bf16", num_devices=num_devices)

    def step_s(phase: Phase, rows: int) -> float:
        step = deployment.profile.step(phase, degree=num_devices, peer_busy=False, rows=rows, context=_CONTEXT)
        return step.mean_s

    tokens = 1 + sum(tree_acceptance(acceptance_for(target, draft).acceptance_model, (1,) * num_draft_tokens))
    verify_s = step_s(Phase.VERIFY, num_requests * (num_draft_tokens + 1))
    round_s = verify_s + num_draft_tokens * step_s(Phase.EXPAND, num_requests)
    return tokens * step_s(Phase.VERIFY, num_requests) / round_s


_PLAIN = make_policy("autoregressive")
_DRAFTED = make_policy("head_chain", num_draft_tokens=len(_FACTS["rates"]))


def _metrics(device: str, policy: Policy) -> Metrics:
    deployment = Deployment.of({**_FACTS, "device": device})
    return decoding_by_position(
        deployment, tuple(_FACTS["rates"]), DraftKind.HEAD, policy, {Role.TARGET: _FACTS["num_devices"]}
    )
