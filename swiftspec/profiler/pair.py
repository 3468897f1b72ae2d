"""Complete measurement of a pair on this machine: its forwards, their operations, and checks for noise."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from swiftspec.artifacts.pair import Pair, dtypes_of_roles, resolve_pair
from swiftspec.artifacts.profile import Profile
from swiftspec.devices import DEVICES, DeviceSpec
from swiftspec.devices.contention import watch_contention
from swiftspec.devices.local import num_devices_here
from swiftspec.errors import FieldError, check_extra
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import Role
from swiftspec.progress import Stages, silent

if TYPE_CHECKING:
    from swiftspec.profiler.noise_checks import Complaint
    from swiftspec.profiler.op_benchmark import OpRow

_OP_DEGREES = (1, 2, 4, 8)
_log = logging.getLogger("swiftspec")


class MeasuredPair(NamedTuple):
    """Measurements of a pair. op_rows: a row for every operation and size; empty unless asked for."""

    profile: Profile
    op_rows: Sequence[OpRow]


def resolve(*, target: str, draft: str, inflate: str | None, dtype: str, device: str = "cpu") -> Pair:
    """Both models, which fit each other; `auto` is each one's faster dtype, measured on a CPU. ValueError if not."""
    dtypes = dtypes_of_roles(dtype)
    known = ",".join("bfloat16" if each == "auto" else each for each in dtypes)
    pair = resolve_pair(target=target, draft=draft, inflate=inflate, dtype=known, device=device)
    check_extra("engine", needed_by="measuring a pair")
    if device == "cuda" or "auto" not in dtypes:
        return pair
    from swiftspec.profiler.dtype_choice import choose_dtype

    target_ref, draft_ref = (
        reference.model_copy(update={"dtype": choose_dtype(reference)}) if each == "auto" else reference
        for reference, each in zip((pair.target, pair.draft), dtypes, strict=True)
    )
    return Pair(target=target_ref, draft=draft_ref)


def measure_pair(
    target: str,
    draft: str,
    *,
    inflate: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    num_devices: int | None = None,
    ranks: int = 1,
    max_sequences: int = 1,
    with_ops: bool = False,
    accept_noise: bool = False,
    stages: Stages = silent,
    minutes: float | None = None,
) -> MeasuredPair:
    """Measure as `swiftspec.profile` does and, if `with_ops`, also the operations that forwards consist of."""
    num_devices = _checked_devices(device, num_devices, ranks)
    if max_sequences != 1:
        from swiftspec.profiler.shared_steps import check_max_sequences

        check_max_sequences(max_sequences)
    pair = resolve(target=target, draft=draft, inflate=inflate, dtype=dtype, device=device)
    op_rows = _measure_ops(pair, device, num_devices, stages) if with_ops else []
    from swiftspec.profiler.noise_checks import op_complaints, step_complaints
    from swiftspec.profiler.steps import measure_profile

    with stages("profile") as progress, watch_contention() as contention:
        profile = measure_profile(
            target=pair.target,
            draft=pair.draft,
            device=device,
            num_devices=num_devices,
            progress=progress,
            ranks=ranks,
            max_sequences=max_sequences,
            minutes=minutes,
        )
    profile = profile.model_copy(update={"others_share": contention.others_share})
    complaints = step_complaints(profile, least_s=_least_s(pair, device, op_rows))
    if op_rows:
        complaints = sorted([*complaints, *op_complaints(op_rows)], reverse=True)
    if complaints and device == "cuda" and not accept_noise:
        raise ValueError(f"{_worst(complaints)}; nothing is saved, unless with --accept-noise")
    if complaints:
        _log.warning("noise: %s", _worst(complaints))
    return MeasuredPair(profile=profile, op_rows=op_rows)


def registered_name(device: str) -> str:
    """Name in DEVICES of a GPU that calls itself e.g. `NVIDIA H200`; other devices keep their own name."""
    words = set(re.split(r"[\s,-]+", device.lower()))

    def common(spec: DeviceSpec) -> int:
        spellings = [{*name.split("-")} - {"sxm"} for name in (spec.name, *spec.aliases)]
        return max((len(parts) for parts in spellings if parts <= words), default=0)

    best = max(DEVICES.values(), key=common)
    return best.name if common(best) else device


def _checked_devices(device: str, num_devices: int | None, ranks: int) -> int:
    """Number of devices to measure on; all if not given. ValueError if there are fewer."""
    if device not in ("cpu", "cuda"):
        raise FieldError("device", repr(device), "expected cpu or cuda")
    available = num_devices_here(device)
    if not available:
        raise FieldError("device", f"{device!r}, but torch finds no GPU here")
    chosen = available if num_devices is None else num_devices
    if not 1 <= chosen <= available:
        raise FieldError("num_devices", chosen, f"this machine offers {available}")
    if ranks > 1 and device != "cpu":
        raise FieldError("ranks", ranks, "it is only for device cpu, since every GPU is a rank of its own")
    if ranks > chosen:
        raise FieldError("ranks", ranks, f"expected at most {chosen}, the number of devices")
    return chosen


def _specs(pair: Pair) -> list[tuple[ModelSpec, str]]:
    """Shape and dtype of both models, inflated."""
    from swiftspec.models.inflation import inflated_spec

    return [(inflated_spec(reference), reference.dtype) for reference in (pair.target, pair.draft)]


def _measure_ops(pair: Pair, device: str, num_devices: int, stages: Stages) -> Sequence[OpRow]:
    from swiftspec.profiler.op_benchmark import BenchmarkGrid, measure_ops
    from swiftspec.profiler.op_timer import OpTimer

    # On a CPU a group is the threads of one process: there are no shards and no all-reduces.
    num_devices = num_devices if device == "cuda" else 1
    grid = BenchmarkGrid(degrees=[degree for degree in _OP_DEGREES if degree <= num_devices])
    with stages("operations") as progress:
        watch = OpTimer(device)
        return list(measure_ops(_specs(pair), watch=watch, grid=grid, num_devices=num_devices, progress=progress))


def _least_s(pair: Pair, device: str, op_rows: Sequence[OpRow]) -> dict[Role, float]:
    """Seconds to read a role's matrices, if their bytes are known and they do not fit in a cache."""
    if not op_rows:
        return {}
    from swiftspec.engine.model.gpu.weights import FORMATS, read_bytes
    from swiftspec.profiler.op_benchmark import peak_bytes_per_s
    from swiftspec.profiler.op_timer import OpTimer

    least_s = {}
    for role, (spec, dtype) in zip((Role.TARGET, Role.DRAFT), _specs(pair), strict=True):
        num_bytes = read_bytes(spec, FORMATS[dtype])
        if OpTimer(device).copies(num_bytes) == 1:
            least_s[role] = num_bytes / peak_bytes_per_s(op_rows)
    return least_s


def _worst(complaints: Sequence[Complaint]) -> str:
    others = len(complaints) - 1
    return f"{complaints[0].sentence} ({others} more such {'point' if others == 1 else 'points'})"
