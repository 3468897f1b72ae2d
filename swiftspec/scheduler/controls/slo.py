"""AdaServe (EuroSys'26, arXiv 2501.12162): first the rows that requests need to keep their limits, then the likeliest.

A request that is behind its limit on the time per token is due several tokens from one round. The one that is due most
takes its likeliest rows first, until their expected number, with the bonus token, is what it is due. The room that is
left is divided as `worth` does. In the paper rows cost nothing up to a fixed budget, which is always used up. Where
they cost time, a request takes only those that let its own tokens come faster: others would delay it, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.controls.draft_round import DraftRound
from swiftspec.scheduler.controls.worth import add_likeliest
from swiftspec.scheduler.costs import RoundCosts


@dataclass(frozen=True, slots=True)
class Slo(Control):
    """Rows by what requests are due."""

    weighs_drafts: ClassVar[bool] = True

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        """Rows of each request."""
        begun = DraftRound(demands, costs)
        add_due(begun, demands, max_rows=max_rows)
        return add_likeliest(begun, demands, costs=costs, max_rows=max_rows)


def add_due(begun: DraftRound, demands: Sequence[Demand], *, max_rows: int) -> None:
    """Give requests the rows that they are due, those that are due most first, while there is room."""
    left = max_rows - len(demands)
    behind = [index for index, demand in enumerate(demands) if demand.tokens_due > 1]
    for index in sorted(behind, key=lambda index: -demands[index].tokens_due):
        demand = demands[index]
        while left > 0 and begun.can_grow(index) and begun.tokens_of(index) < demand.tokens_due:
            survival = demand.survival[begun.rows[index] - 1]
            if survival / begun.tokens_of(index) < len(behind) * (begun.longer_s(index) / begun.seconds - 1):
                break
            begun.add(index)
            left -= 1
