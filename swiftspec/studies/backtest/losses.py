"""A published loss by speculation: Qwen3.5's MTP head in vLLM, from 342 to 128 tokens/s though 97 % is accepted.

Both figures are of a server's log, so the time of prompts is in them, and the two lines have different work: 2.8 prompt
tokens for each output token without the head, 10.6 with it. The time that a prompt token costs outside decoding (its
prefill, the encoding of images, waiting for the client) follows from the first line and the predicted time of plain
decoding; the second line is then predicted from its own mix. Decoding itself is predicted to gain.
"""

from swiftspec.artifacts.metrics import Metrics
from swiftspec.errors import FieldError
from swiftspec.policies import DraftKind, Policy, make_policy
from swiftspec.policies.effects import Role
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import Row
from swiftspec.studies.backtest.speeds import Deployment, decoding_by_position

_FACTS = read_facts("losses")["mtp"]


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
        raise FieldError(
            "device",
            f"{device!r}, on which plain decoding is slower than {plain['tokens_per_s']} tokens/s",
        )
    prompt_token_s = left / plain["prompt_tokens_per_s"]
    outputs = drafted["tokens_per_s"] / drafted["prompt_tokens_per_s"]  # per prompt token
    return float(outputs / (prompt_token_s + outputs / _metrics(device, _DRAFTED).decoding_tokens_per_s))


def decoding_gain(device: str) -> float:
    """Predicted speed with the head over that without, prompts left out."""
    return _metrics(device, _DRAFTED).decoding_tokens_per_s / _metrics(device, _PLAIN).decoding_tokens_per_s


_PLAIN = make_policy("autoregressive")
_DRAFTED = make_policy("head_chain", num_draft_tokens=len(_FACTS["rates"]))


def _metrics(device: str, policy: Policy) -> Metrics:
    deployment = Deployment.of({**_FACTS, "device": device})
    return decoding_by_position(
        deployment, tuple(_FACTS["rates"]), DraftKind.HEAD, policy, {Role.TARGET: _FACTS["num_devices"]}
    )
