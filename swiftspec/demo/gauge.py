"""Quick timing of the machine: forwards of the bundled pair and a short simulation, in seconds.

Torch is imported only when it is needed.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from swiftspec.files.document import ModelRef
from swiftspec.profiler.effort import Curve, Pace

__all__ = ["Gauge", "instructions", "take_gauge"]

_ROWS = (1, 8, 32)
_RECORDED = Path(__file__).parents[1] / "profiles" / "demo-sapphire-rapids-2-cores" / "plan.json"
_SIMULATED = "serial_tree"
_REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """Result of the first look at the machine.

    base, deep: forwards on one core of the bundled target as it is, and of the deepest one that the demo may choose.
    base_layers, deep_layers: their numbers of layers.
    draft: forwards of the draft, on one core.
    load_s: seconds to load the deepest target.
    simulation_s: seconds to simulate a recorded prompt on one core.
    num_devices: cores.
    """

    base: Curve
    deep: Curve
    base_layers: int
    deep_layers: int
    draft: Curve
    load_s: float
    simulation_s: float
    num_devices: int

    def pace(self, layers: int) -> Pace:
        """That of a profile of a target of `layers` layers, on one core."""
        return Pace(
            target=Curve({rows: self.target_s(layers, rows) for rows in _ROWS}),
            draft=self.draft,
            prompt_token_s=(self.target_s(layers, _ROWS[-1]) + self.draft.at(_ROWS[-1])) / _ROWS[-1],
            start_s=self.load_s * layers / self.deep_layers,
        )

    def target_s(self, layers: int, rows: float) -> float:
        """Seconds of a forward of a target of `layers` layers, on a line through the two measured depths."""
        if self.deep_layers == self.base_layers:
            return self.deep.at(rows)
        share = (layers - self.base_layers) / (self.deep_layers - self.base_layers)
        return max(0.0, self.base.at(rows) + share * (self.deep.at(rows) - self.base.at(rows)))


def take_gauge(target: ModelRef, draft: ModelRef, *, num_devices: int) -> Gauge:
    """Time a target as it is and inflated, the draft, and a simulation."""
    from swiftspec.models.inflation import inflated_spec
    from swiftspec.profiler.dtype_choice import forward_seconds

    base = target.model_copy(update={"inflate": None})
    start_s = time.perf_counter()
    deep = forward_seconds(target, _ROWS)
    load_s = time.perf_counter() - start_s
    return Gauge(
        base=Curve.of(forward_seconds(base, _ROWS)),
        deep=Curve.of(deep),
        base_layers=inflated_spec(base).num_layers,
        deep_layers=inflated_spec(target).num_layers,
        draft=Curve.of(forward_seconds(draft, _ROWS)),
        load_s=load_s,
        simulation_s=_simulation_seconds(),
        num_devices=num_devices,
    )


def instructions() -> str:
    """The vector instructions that torch uses here, such as `AVX512`."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _simulation_seconds() -> float:
    """Seconds to simulate one recorded prompt in this process; the mean of a few after a first one."""
    from swiftspec.artifacts.planned import Planned
    from swiftspec.simulator.driver import simulate

    recorded = Planned.load(_RECORDED)
    candidate = recorded.plan.candidates[_SIMULATED]
    seconds = []
    for _ in range(1 + _REPEATS):
        start_s = time.perf_counter()
        simulate(
            candidate.build(),
            degrees={role: len(group) for role, group in candidate.groups.items()},
            profile=recorded.profile,
            trace=recorded.trace,
            prompt_indices=(0,),
        )
        seconds.append(time.perf_counter() - start_s)
    return mean(seconds[1:])
