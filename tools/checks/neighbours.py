"""Closed forms of neighbouring systems, against what they published.

Nothing is measured: MagicDec's speed-up by context and batch, SSSD's query length against the goodput of every length,
and what tensor parallelism does to prompts and to decoding, which LoongServe would divide differently. Criteria:

- MagicDec: the largest speed-up is the published 2.5 within 5 %, and at short contexts a larger batch has none;
- SSSD: the length by the knee of the roofline has at least 85 % of the best length's goodput.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scipy.optimize import brentq

from swiftspec.cli import console
from swiftspec.costmodel.compose import RoleModel
from swiftspec.costmodel.device_profile import device_profile
from swiftspec.devices import DEVICES
from swiftspec.models.published import known_model
from swiftspec.models.spec import weight_bytes
from swiftspec.policies.effects import Role
from swiftspec.scheduler.controls.control import Demand
from swiftspec.scheduler.controls.named import goodput_by_length
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from tools.checks.criterion import Criterion, at_least, at_most, below

_EFFICIENCY, _FLOPS_SHARE = 0.6, 0.7  # of an A100's bandwidth and arithmetic
_BATCHES = (1, 8, 32, 128, 256)
_PUBLISHED_SPEED_UP = 2.5


def check() -> Iterator[Criterion]:
    """Compute the tables, and judge the published figures."""
    yield from _magicdec()
    yield from _sssd()
    _degrees()


def _speed_up(batch: int, context: float, *, budget: int = 512, length: int = 3, tokens: float = 3.0) -> float:
    """Speed-up of self-speculation with a draft whose KV cache has a budget: Llama-3.1-8B on eight A100.

    tokens: of a round. As MagicDec (arXiv 2408.11049): a forward reads weights and KV, and computes its rows.
    """
    spec, device = known_model("llama-3.1-8b").spec, DEVICES["a100-sxm"]
    weights = weight_bytes(spec, "bf16")
    bandwidth = 8 * _EFFICIENCY * device.memory_bandwidth_Bps
    flops = 8 * _FLOPS_SHARE * device.peak_flops["bf16"]

    def forward_s(kv_tokens: float, rows: int) -> float:
        return (weights + batch * kv_tokens * spec.kv_bytes_per_token("bf16")) / bandwidth + weights * rows / flops

    round_s = length * forward_s(min(context, budget), batch) + forward_s(context, batch * (length + 1))
    return tokens * forward_s(context, batch) / round_s


def _magicdec() -> Iterator[Criterion]:
    contexts = (1_000, 2_000, 4_000, 8_000, 32_000)
    rows = [(str(at), *(f"{_speed_up(batch, at):.2f}" for batch in _BATCHES)) for at in contexts]
    console.table(
        "MagicDec: speed-up with 3 tokens a round, by context and batch", ("context", *map(str, _BATCHES)), rows
    )
    grows = brentq(lambda context: _speed_up(256, context) - _speed_up(8, context), 600, 30_000)
    console.say(f"The speed-up grows with the batch from a context of {grows:.0f} tokens on (published: about 4,000)")
    largest = _speed_up(_BATCHES[-1], contexts[-1]) / _PUBLISHED_SPEED_UP - 1
    yield at_most("MagicDec's largest speed-up, from the published one", 100 * abs(largest), 5, "%")
    short = _speed_up(_BATCHES[-1], contexts[0]) / _speed_up(_BATCHES[0], contexts[0])
    yield below("MagicDec's speed-up at a short context, largest batch over smallest", short, 1)


def _sssd() -> Iterator[Criterion]:
    """Goodput of the length that the knee of the roofline suggests, over that of the best one."""
    device = DEVICES["h100-sxm"]
    knee = device.peak_flops["bf16"] / device.memory_bandwidth_Bps
    rows, shares = [], []
    for batch in (1, 8, 32, 64, 128, 256):
        demands = [Demand((0.71, 0.38, 0.21, 0.08, 0.05))] * batch
        speeds = [each.tokens_per_s for each in goodput_by_length(demands, costs=_Published(), max_rows=10_000)]
        suggested = min(len(speeds) - 1, max(0, round(knee / batch) - 1))
        best = max(range(len(speeds)), key=speeds.__getitem__)
        shares.append((f"batch of {batch}", speeds[suggested] / speeds[best]))
        rows.append((str(batch), str(suggested), str(best), f"{shares[-1][1]:.3f}"))
    console.table(
        f"SSSD: draft length by the knee of an H100, {knee:.0f} rows, against the best one",
        ("batch", "by the knee", "best", "goodput"),
        rows,
    )
    yield at_least("SSSD's goodput over that of the best length", shares, 0.85)


class _Published:
    """Llama-3.1-8B with an EAGLE head on an H100 by TurboSpec's fits, at 1,024 tokens of context."""

    _CONTEXT = 1024

    def verify_s(self, num_sequences: int, num_rows: int, /) -> float:
        attended = num_sequences * self._CONTEXT
        ms = 4.8591e-5 * attended + 1.84384e-2 * num_rows - 4.3314e-2 * num_sequences + 6.9387
        return ms / 1e3 * (1.05 if num_rows > num_sequences else 1.0)

    def level_s(self, level: int, num_sequences: int, /) -> float:
        ms = 4.387e-5 * num_sequences + 0.45218
        if level == 1:  # what it costs to draft anything
            ms += 2.897e-6 * num_sequences * self._CONTEXT + (4.387e-5 + 5.528e-3) * num_sequences + 0.44711
        return ms / 1e3


def _degrees() -> None:
    """A prompt of 4,000 tokens and a decoding step of Llama-3-70B by the devices that share them."""
    degrees = (2, 4, 8)
    profile = device_profile(
        RoleModel(model=known_model("llama-3-70b"), quant="bf16"),
        RoleModel(model=known_model("llama-3.2-1b"), quant="bf16"),
        device="h100-sxm",
        num_devices=8,
        max_context=8000,
    )

    def step_ms(phase: Phase, rows: int, context: int) -> Iterable[str]:
        for degree in degrees:
            seconds = profile.step(StepKey(Role.TARGET, phase, degree, rows, context)).mean_s
            yield f"{1e3 * seconds:.1f} ({1e3 * seconds * degree:.0f})"

    console.table(
        "Llama-3-70B on H100, by devices: ms, and device-ms",
        ("step", *map(str, degrees)),
        [
            ("prompt of 4000", *step_ms(Phase.PREFILL, 4000, 0)),
            ("one token", *step_ms(Phase.VERIFY, 1, 4000)),
            ("32 rows", *step_ms(Phase.VERIFY, 32, 4000)),
        ],
    )
