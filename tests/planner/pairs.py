"""A machine that is not local, by a formula: bytes over bandwidth, two all-reduces a layer, launches, a host."""

from collections.abc import Iterator

from swiftspec.artifacts.profile import Collective, Profile, StepPoint
from swiftspec.devices import named_device
from swiftspec.models.published import known_model
from swiftspec.models.spec import weight_bytes
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Part, Provenance
from swiftspec.timing.timeline import Phase
from tests.builders import host_point, profile

DEVICE = named_device("h800-sxm")
PAIR = {Role.TARGET: known_model("llama-3-70b").spec, Role.DRAFT: known_model("llama-3.2-3b").spec}
QUANTISATION = dict.fromkeys(Role, "int4")

_EFFICIENCY = 0.6  # of the bandwidth
_ALL_REDUCE_S = (8e-6, 0.5e-6)  # one, and what each device adds
_LAUNCHES_S = 12e-6  # a layer's
_HOST_S = 3e-4
_SHARES = {Phase.EXIT: 0.5, Phase.FINISH: 0.55, Phase.FUZZY: 0.7}
_ROLES = {
    **dict.fromkeys((Phase.EXPAND, Phase.FUZZY), Role.DRAFT),
    **dict.fromkeys((Phase.VERIFY, Phase.EXIT, Phase.FINISH), Role.TARGET),
}


def composed_profile(
    *, num_devices: int = 8, provenance: Provenance = Provenance.COMPOSED, context: int = 4096
) -> Profile:
    """Profile of PAIR on a number of devices, with the parts of every step."""

    def parts(role: Role, degree: int, rows: int, context: int, share: float) -> tuple[Part, ...]:
        spec = PAIR[role]
        first_s, more_s = _ALL_REDUCE_S
        # Rows beyond 16 begin to cost arithmetic.
        matrices_s = weight_bytes(spec, "int4") / DEVICE.memory_bandwidth_Bps / _EFFICIENCY / degree * max(1, rows / 64)
        kv_s = spec.kv_bytes_per_token("bf16") * context / DEVICE.memory_bandwidth_Bps / _EFFICIENCY / degree
        reduce_s = 2 * spec.num_layers * (first_s + more_s * degree + rows * 2e-8) if degree > 1 else 0.0
        seconds = {
            "gemm": matrices_s,
            "attention": kv_s,
            "all_reduce": reduce_s,
            "launch": spec.num_layers * _LAUNCHES_S,
            "host": _HOST_S,
        }
        return tuple(
            Part(name=name, seconds=share * value, provenance=provenance) for name, value in seconds.items() if value
        )

    def point(role: Role, phase: Phase, degree: int, rows: int, context: int) -> StepPoint:
        made = parts(role, degree, rows, context, _SHARES.get(phase, 1.0))
        mean_s = sum(part.seconds for part in made)
        return StepPoint(
            role=role,
            phase=phase,
            degree=degree,
            peer_busy=False,
            rows=rows,
            context=context,
            quantiles_s=(mean_s,) * NUM_QUANTILES,
            num_samples=1,
            provenance=provenance,
            parts=made,
        )

    def steps() -> Iterator[StepPoint]:
        for degree in range(1, num_devices + 1):
            for phase, role in _ROLES.items():
                for rows in (1, 2, 4, 8, 12, 16, 24, 32, 48):
                    for length in (0, context // 4, context):
                        yield point(role, phase, degree, rows, length)
            for role in Role:
                for rows in (128, 1024, 8192):
                    yield point(role, Phase.PREFILL, degree, rows, 0)

    host = {Phase.SEND: 2e-5, Phase.WAIT: 2e-5, Phase.COMPACT: 3e-5, Phase.COMMIT: 1e-5}
    made = profile(
        tuple(steps()), tuple(host_point(phase, value) for phase, value in host.items()), num_devices=num_devices
    )
    collectives = tuple(
        Collective(role=role, degree=degree, implementation="one_shot", seconds={"one_shot": 1e-5, "nccl": 2e-5})
        for role in Role
        for degree in range(2, num_devices + 1)
    )
    return made.model_copy(update={"peers_interfere": False, "collectives": collectives})
