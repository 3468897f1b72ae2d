"""SwiftSpec's own results: forwards by number of devices, speeds, gains by trees and kernels, and chosen splits.

Forwards with 4-bit weights are fits to the paper's tables; each is predicted by the fit to the others. Speeds follow by
simulation from forwards and acceptance lengths, without a fit to any speed. Both arms of the paper draft in the same
way, so the same assumptions hold for both (see table7).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import mean
from typing import Any

from swiftspec.acceptance.proxy_pairs import acceptance_for
from swiftspec.costmodel.device_profile import Int4Forwards
from swiftspec.costmodel.linear_fit import LinearFit, Observation
from swiftspec.costmodel.published import SwiftSpecKernels, kernel_observations
from swiftspec.devices import DeviceSpec, named_device
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.studies.backtest.rows import Constant, Row
from swiftspec.studies.backtest.speeds import Deployment, decoding
from swiftspec.studies.backtest.standard_kernels import StandardInt4Kernels, leave_one_out, standard_observations
from swiftspec.studies.backtest.systems import published_systems
from swiftspec.studies.backtest.table7 import Reading, predicted_tails

_row = Row.unfitted
_SPLITS = ((2, 6), (4, 4), (6, 2))  # the ones that the authors tried
_SERIAL_EXPANSIONS = (3, 7)
_DEVICE = named_device("h800-sxm")
_OWN = SwiftSpecKernels(_DEVICE)


def _standard_but_for_attention(device: DeviceSpec) -> StandardInt4Kernels:
    """Standard int4 kernels with SwiftSpec's attention, which all arms of the paper's ablation have."""
    return StandardInt4Kernels(device, SwiftSpecKernels(device))


_ARMS: tuple[tuple[Int4Forwards, str, str], ...] = (
    (SwiftSpecKernels, "full", "kernels only"),
    (_standard_but_for_attention, "parallel tree only", "SpecExec"),
)


def paper_rows() -> list[Row]:
    """All rows; takes half a minute."""
    return [*_kernels(), *_forwards(), *_speeds(), *_tails(), *_arms(), *_ablation(), *_splits()]


def _kernels() -> Iterator[Row]:
    facts, observations = published_systems()["swiftspec"], kernel_observations()
    for observation, error in zip(observations, leave_one_out(observations), strict=True):
        yield Row(
            name=f"{observation.name}, SwiftSpec, int4",
            quantity="kernel, us",
            published=observation.seconds * 1e6,
            predicted=_OWN.kernels.seconds(observation.amounts) * 1e6,
            error_leave_one_out=error,
            source=f"{facts['source']}, Table 8",
        )


def _forwards() -> Iterator[Row]:
    facts = published_systems()["swiftspec"]
    tables = (
        (f"{facts['source']}, Table 1", "vLLM, int4", standard_observations(), StandardInt4Kernels(_DEVICE).fit),
        (f"{facts['source']}, Section 4.5 and Table 7", "SwiftSpec, int4", _OWN.forward_observations(), _OWN.forwards),
    )
    for source, stack, observations, fit in tables:
        for observation, error in zip(observations, leave_one_out(observations), strict=True):
            if error is not None:  # None for the only figure that determines the cost of a second tile of rows
                yield _forward(observation, fit, error, stack=stack, source=source)


def _forward(observation: Observation, fit: LinearFit, error: float, *, stack: str, source: str) -> Row:
    return Row(
        name=f"{observation.name}, {stack}",
        quantity="forward, ms",
        published=observation.seconds * 1e3,
        predicted=fit.seconds(observation.amounts, fixed_s=observation.fixed_s) * 1e3,
        error_leave_one_out=error,
        source=source,
    )


def _speeds() -> Iterator[Row]:
    facts = published_systems()["swiftspec"]
    for speed in facts["speeds"]:
        predicted = _parallel(speed, SwiftSpecKernels, speed["split"])
        name = f"{_pair(speed)}, SwiftSpec {_split(speed['split'])}"
        yield _row(name, "tokens/s", speed["tokens_per_s"], predicted, f"{facts['source']}, {speed['where']}")


def _tails() -> Iterator[Row]:
    """Slow tails of Llama-3.3-70B over the mean, with the acceptance by data set of Qwen2, the only one published."""
    facts = published_systems()["swiftspec"]
    tails, predicted = facts["tails"], predicted_tails(Reading())
    for name, arm in (("SwiftSpec", "parallel"), ("SGLang with EAGLE-3", "serial")):
        published = tails[name]["p95"] / tails[name]["mean"]
        title = f"{_pair(tails)}, {name}, slow tail (p95) over mean"
        yield _row(title, "ratio", published, predicted[arm], f"{facts['source']}, {tails['where']}")


def _arms() -> Iterator[Row]:
    facts = published_systems()["swiftspec"]
    arms = facts["arms"]
    source = f"{facts['source']}, {arms['where']}"
    parallel, serial = (
        _parallel(arms, SwiftSpecKernels, arms["split"]),
        _serial(arms, SwiftSpecKernels, (Reading().expansions,)),
    )
    yield _row(f"{_pair(arms)}, parallel {_split(arms['split'])}", "tokens/s", arms["parallel"], parallel, source)
    yield _row(f"{_pair(arms)}, serial on 8", "tokens/s", arms["serial"], serial, source)
    ratio = arms["parallel"] / arms["serial"]
    yield _row(f"{_pair(arms)}, parallel over serial", "ratio", ratio, parallel / serial, source)


def _ablation() -> Iterator[Row]:
    facts = published_systems()["swiftspec"]
    published = facts["ablation"]
    speeds: dict[str, list[float]] = {name: [] for name in ("full", "kernels only", "parallel tree only", "SpecExec")}
    for family in facts["families"]:
        for forwards, parallel, serial in _ARMS:
            speeds[parallel].append(max(_parallel(family, forwards, split) for split in _SPLITS))
            speeds[serial].append(_serial(family, forwards, _SERIAL_EXPANSIONS))
    for name, ratio in published.items():
        if name != "where":
            first, second = name.split(" over ")
            predicted = mean(left / right for left, right in zip(speeds[first], speeds[second], strict=True))
            yield _row(f"five families, {name}", "ratio", ratio, predicted, f"{facts['source']}, {published['where']}")


def _splits() -> Iterator[Row]:
    """Speed of the published split as a share of the best predicted split's."""
    facts = published_systems()["swiftspec"]
    for family in facts["families"]:
        speeds = split_speeds(family)
        share = speeds[tuple(family["split"])] / max(speeds.values())
        best = max(speeds, key=speeds.__getitem__)
        name = f"{_pair(family)}, published split {_split(family['split'])}, predicted {_split(best)}"
        yield _row(name, "share of the best", 1.0, share, f"{facts['source']}, Table 9")


def split_speeds(family: Mapping[str, Any]) -> dict[tuple[int, int], float]:
    """Predicted tokens/s by split, target's devices first."""
    return {split: _parallel(family, SwiftSpecKernels, split) for split in _SPLITS}


def _parallel(family: Mapping[str, Any], forwards: Int4Forwards, split: Sequence[int]) -> float:
    return _speed(family["target"], family["draft"], forwards, Reading().parallel, tuple(split))


def _serial(family: Mapping[str, Any], forwards: Int4Forwards, expansions: Sequence[int]) -> float:
    """Speed of the serial tree at the best of some numbers of expansions."""
    policies = [Reading(expansions=count).serial for count in expansions]
    devices = (published_systems()["swiftspec"]["num_devices"],)
    return max(_speed(family["target"], family["draft"], forwards, policy, devices) for policy in policies)


@cache  # the same speeds are in several rows
def _speed(target: str, draft: str, forwards: Int4Forwards, policy: Policy, split: tuple[int, ...]) -> float:
    facts = published_systems()["swiftspec"]
    deployment = Deployment(
        device=facts["device"],
        target=target,
        draft=draft,
        quant=facts["quant"],
        num_devices=facts["num_devices"],
        int4_forwards=forwards,
    )
    degrees = dict(zip(Role, split, strict=False))  # without the draft's where it has no devices of its own
    acceptance_model = acceptance_for(target, draft).acceptance_model
    return decoding(deployment, acceptance_model, policy, degrees).decoding_tokens_per_s


def _pair(family: Mapping[str, Any]) -> str:
    return f"{family['target']} + {family['draft']}"


def _split(split: Sequence[int]) -> str:
    return "+".join(map(str, split))


def paper_constants() -> list[Constant]:
    """Constants of the fitted forwards."""
    fits = (
        ("vllm_int4", StandardInt4Kernels(_DEVICE).fit, "16 forwards of vLLM (SwiftSpec, Table 1)"),
        ("swiftspec_kernel", _OWN.kernels, "25 kernels of SwiftSpec (Table 8)"),
        ("swiftspec_forward", _OWN.forwards, "5 target forwards of SwiftSpec (Section 4.5, Table 7)"),
    )
    return [
        Constant(name=f"{stack}.{name}", value=value, unit="s per unit", fitted_on=fitted_on)
        for stack, fit, fitted_on in fits
        for name, value in fit.coefficients.items()
    ]
