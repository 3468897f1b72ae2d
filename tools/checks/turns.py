"""A control that is another one every second, so that several are measured on one engine at nearly the same time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.costs import RoundCosts

TURN_S = 1.0


def turn_at(at_s: float) -> int:
    """Number of the turn at a time of `time.perf_counter`, which all processes share."""
    return int(at_s // TURN_S)


@dataclass(frozen=True)
class Turns:
    """Controls that take turns."""

    controls: tuple[Control, ...]

    @property
    def learns(self) -> bool:
        """As the present one."""
        return self._present.learns

    @property
    def weighs_drafts(self) -> bool:
        """As the present one."""
        return self._present.weighs_drafts

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        """Rows by the present one."""
        return self._present.rows(demands, costs=costs, max_rows=max_rows)

    @property
    def _present(self) -> Control:
        return self.controls[turn_at(time.perf_counter()) % len(self.controls)]
