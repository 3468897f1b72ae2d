"""AdaServe's own rule (arXiv 2501.12162, algorithm 2): a fixed budget of rows that is always used up.

The control `slo` weighs what rows cost. The paper does not: first the requests that are due most tokens take the rows
that they need, then the likeliest rows of all requests take what is left of the budget. The number of requests decides
the depth and the width of all trees (equations 8 and 9, whose constants c1 and c2 are not published: here they are 0).
In the paper a row's probability is the draft's own in that round; here it is the share of the request's past rows of
that number that were accepted. A beam has as many rows as its width times its depth, of those of the widest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Program, Role
from swiftspec.scheduler.asks import Ask
from swiftspec.scheduler.controller import Controller, Steering
from swiftspec.scheduler.controls.control import Demand
from swiftspec.scheduler.costs import GroupCosts, RoundCosts

_MOST_OF_EQUAL = 1.2  # rows that what a request is due can take, over its equal part of the budget


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledBudget:
    """Rows by what requests are due, then by likelihood, until the budget is used up.

    Parameters
    ----------
    budget_rows : int
        Rows of a verification (B1).
    draft_rows : int
        Rows of a draft forward, of all requests (B2).
    least_depth, most_depth : int
        Of a tree.
    most_width : int
        Of a tree.
    """

    learns: ClassVar[bool] = False
    weighs_drafts: ClassVar[bool] = False  # a synthetic trace has no drafts that know which of them are good

    budget_rows: int
    draft_rows: int
    least_depth: int
    most_depth: int
    most_width: int

    def depth(self, num_requests: int) -> int:
        """Depth of all trees while so many requests run."""
        wanted = self.budget_rows // num_requests - 1
        return min(max(wanted, self.least_depth), self.most_depth)

    def width(self, num_requests: int) -> int:
        """Width of all trees while so many requests run."""
        return min(max(self.draft_rows // num_requests, 1), self.most_width)

    def rows(
        self,
        demands: Sequence[Demand],
        *,
        costs: RoundCosts,  # noqa: ARG002 - rows cost nothing within the budget
        max_rows: int,
    ) -> list[int]:
        """Rows of each request."""
        rows = [1] * len(demands)
        if not demands:
            return rows
        left = max_rows - len(demands)
        depth = self.depth(len(demands))
        most_due, tree_rows = depth + 1, 1 + depth * self.width(len(demands))
        most_rows = min(int(_MOST_OF_EQUAL * max_rows / len(demands)), tree_rows - 1)
        for index in sorted(range(len(demands)), key=lambda index: -demands[index].tokens_due):
            survival, due = demands[index].survival, min(demands[index].tokens_due, most_due)
            tokens = 1.0
            while left > 0 and tokens < due and rows[index] <= min(most_rows, len(survival)):
                tokens += survival[rows[index] - 1]
                rows[index] += 1
                left -= 1
        order = sorted(
            (-survival, row, index)
            for index, demand in enumerate(demands)
            for row, survival in enumerate(demand.survival[rows[index] - 1 : tree_rows - 1])
        )
        for _, _, index in order[: max(0, left)]:
            rows[index] += 1
        return rows


class _Controller(Controller):
    """A controller that drafts to the depth of the rule, and divides what was drafted."""

    def __init__(self, control: FilledBudget, costs: GroupCosts, *, max_rows: int) -> None:
        super().__init__(control, costs, max_rows=max_rows)
        self._rule = control

    def may_draft(self, _request: int, level: int, _now_s: float, /) -> bool:
        return level <= self._rule.depth(len(self._paces))

    def shares(self, asks: Sequence[Ask], num_rows: int, now_s: float) -> Sequence[int]:
        demands = []
        for ask in asks:
            survival, due = self._demand(ask.request, ask.num_rows, now_s)
            unknown = ask.num_rows - 1 - len(survival)
            demands.append(Demand(survival + (survival[-1:] or (1.0,)) * unknown, due))
        return self._rule.rows(demands, costs=self._costs, max_rows=num_rows)


class FilledBudgetSteering(Steering):
    """Steering by the rule."""

    __slots__ = ()

    def controller(self, max_rows: int) -> Controller:
        assert isinstance(self.control, FilledBudget)
        return _Controller(self.control, self.costs, max_rows=max_rows)

    def programs(self, policy: Policy, request: Request) -> Mapping[Role, Program]:
        """Those of the policy itself: by the rule all requests draft in every round."""
        return policy.programs(request)
