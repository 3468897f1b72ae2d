"""Figures of neighbouring systems, in closed form, as in docs/log: `-m tools.check_neighbours`.

MagicDec's speed-up by context and batch, SSSD's query length against the goodput of every length, and what tensor
parallelism does to prompts and to decoding, which LoongServe would divide differently. Seconds, no measurement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from scipy.optimize import brentq

from swiftspec.cli import console
from swiftspec.costmodel.compose import RoleModel
from swiftspec.costmodel.device_profile import device_profile
from swiftspec.devices import DEVICES
from swiftspec.models import known_model, weight_bytes
from swiftspec.policies.effects import Role
from swiftspec.scheduler.controls.control import Contender
from swiftspec.scheduler.controls.goodput import goodput_by_length
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase

__all__ = ["main"]

_EFFICIENCY, _FLOPS_SHARE = 0.6, 0.7  # of an A100's bandwidth and arithmetic
_BATCHES = (1, 8, 32, 128, 256)


def main() -> int:
    _magicdec()
    _sssd()
    _degrees()
    return 0


def magicdec_speed_up(batch: int, context: float, *, budget: int = 512, length: int = 3, tokens: float = 3.0) -> float:
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


def _magicdec() -> None:
    contexts = (1_000, 2_000, 4_000, 8_000, 32_000)
    rows = [(str(at), *(f"{magicdec_speed_up(batch, at):.2f}" for batch in _BATCHES)) for at in contexts]
    console.table(
        "MagicDec: speed-up with 3 tokens a round, by context and batch", ("context", *map(str, _BATCHES)), rows
    )
    grows = brentq(lambda context: magicdec_speed_up(256, context) - magicdec_speed_up(8, context), 600, 30_000)
    console.say(f"The speed-up grows with the batch from a context of {grows:.0f} tokens on (published: about 4,000)")


def _sssd() -> None:
    """Goodput of the length that the knee of the roofline suggests, over that of the best one."""
    device = DEVICES["h100-sxm"]
    knee = device.peak_flops["bf16"] / device.memory_bandwidth_Bps
    found = []
    for batch in (1, 8, 32, 64, 128, 256):
        contenders = [Contender((0.71, 0.38, 0.21, 0.08, 0.05))] * batch
        speeds = [each.tokens_per_s for each in goodput_by_length(contenders, costs=_Published(), max_rows=10_000)]
        suggested = min(len(speeds) - 1, max(0, round(knee / batch) - 1))
        best = max(range(len(speeds)), key=speeds.__getitem__)
        found.append((str(batch), str(suggested), str(best), f"{speeds[suggested] / speeds[best]:.3f}"))
    console.table(
        f"SSSD: draft length by the knee of an H100, {knee:.0f} rows, against the best one",
        ("batch", "by the knee", "best", "goodput"),
        found,
    )


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


if __name__ == "__main__":
    sys.exit(main())
