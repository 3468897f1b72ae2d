"""Warm-up costs: seconds by which a CPU's forwards take longer after a pause, until its caches hold the weights again.

The last cache of a processor is shared with everything else that the machine runs. While nobody reads a model's
weights, the others evict them: after a pause of p seconds a share s = 1 - exp(-(p - free) / evicted_s) is gone, where
free is the pause with which the profile's steps were measured. The k-th forward after it, from 0, takes
s left^k extra_s(rows) longer. Forwards of many rows, such as prompts, compute more than they read: they are no slower
for it, and count as a pause.
"""

import math
from typing import Annotated, Self

import numpy as np
from pydantic import Field, model_validator

from swiftspec.files.document import Facts
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import SHARE_OF_LAYERS, Phase

# The pauses before a profile's steps: of warm ones what an engine does between two forwards, of cold ones a draft's.
FREE_PAUSE_S = 0.3e-3
FREE_COLD_PAUSE_S = 3e-3
# A draft whose last forward ended longer ago than this is cold. Longer than the pause between two forwards of one
# model, shorter than a forward of a target worth speculating for; a draft of 2 MB was cold after 1 to 3 ms.
COOLING_S = 1e-3
_NEGLIGIBLE = 0.01  # share of the weights

_Degree = Annotated[int, Field(ge=1, le=65536)]
_Cost = Annotated[float, Field(ge=0, le=1e6)]


class RecentForwards:
    """When the models that one process runs computed last: whether a forward finds its weights evicted from the caches.

    A target outlasts a pause, but not a draft of its own size, after which its forwards took up to twice as long.
    """

    def __init__(self) -> None:
        self._ended_s: dict[Role, float] = {}
        self._last: Role | None = None

    def is_cold(self, model: Role, *, now_s: float) -> bool:
        """Whether a forward of a model that begins now finds them evicted."""
        if model is Role.TARGET:
            return self._last not in (None, model)
        return now_s - self._ended_s.get(model, now_s) > COOLING_S

    def note(self, model: Role, *, now_s: float) -> None:
        """Count a forward that ends now."""
        self._ended_s[model], self._last = now_s, model


class WarmUpCost(Facts):
    """Cost of a pause for the forwards of a role's model after it.

    degree, ranks: as in `StepPoint`. rows: of forwards, ascending. extra_s: seconds by which the first forward of as
    many rows takes longer when all weights are evicted. left: share of that which is left after each forward.
    evicted_s: seconds in which a share 1 - 1/e of the weights is evicted. median_error: of the fit, as a share of a
    forward's measured seconds.
    """

    role: Role
    degree: _Degree
    ranks: _Degree = 1
    rows: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1, max_length=64)
    extra_s: tuple[_Cost, ...]
    left: float = Field(ge=0, lt=1)
    evicted_s: float = Field(gt=0, le=1e6)
    median_error: float | None = Field(default=None, ge=0)
    provenance: Provenance

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if len(self.extra_s) != len(self.rows) or list(self.rows) != sorted({*self.rows}):
            raise ValueError("expected rows in ascending order, and as many extra_s")
        return self

    def extra(self, rows: int, *, evicted: float) -> float:
        """Seconds by which a forward takes longer when that share of the weights is evicted."""
        if rows > self.rows[-1] or evicted < _NEGLIGIBLE:
            return 0.0
        return evicted * float(np.interp(rows, self.rows, self.extra_s))

    def evicted_after(self, pause_s: float, *, cold: bool = False) -> float:
        """Share of the weights that a pause evicts. cold: beyond what a cold step's time has in it."""
        free_s = FREE_COLD_PAUSE_S if cold else FREE_PAUSE_S
        return -math.expm1(-max(0.0, pause_s - free_s) / self.evicted_s)

    def scaled(self, factor: float) -> Self:
        """The same pauses, whose forwards take longer by a factor of it."""
        return self.model_copy(update={"extra_s": tuple(factor * value for value in self.extra_s)})


class WeightCache:
    """A model's weights in the caches of a device group, as time goes on; all of them at first."""

    def __init__(self, cost: WarmUpCost, *, now_s: float = 0.0) -> None:
        self._cost = cost
        self._evicted = 0.0
        self._read_s = now_s  # when the weights were read last

    def begin(self, phase: Phase, rows: int, *, now_s: float, cold: bool = False) -> float:
        """Seconds by which a forward that begins now takes longer. cold: whether its time is that of a cold step."""
        if now_s - self._read_s > FREE_PAUSE_S:
            self._evicted += (1 - self._evicted) * self._cost.evicted_after(now_s - self._read_s, cold=cold)
        self._read_s = now_s
        return SHARE_OF_LAYERS.get(phase, 1.0) * self._cost.extra(rows, evicted=self._evicted)

    def end(self, phase: Phase, rows: int, *, now_s: float) -> None:
        """Count the forward that began last, and ends now."""
        if rows > self._cost.rows[-1]:
            return  # it is a pause
        self._evicted *= self._cost.left ** SHARE_OF_LAYERS.get(phase, 1.0)
        self._read_s = now_s
