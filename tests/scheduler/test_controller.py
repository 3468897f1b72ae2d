"""What a controller learns, when it serves rounds whole, and what it tells its control."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from swiftspec.policies import make_policy
from swiftspec.policies.effects import ForwardKind, Role
from swiftspec.scheduler.asks import Ask
from swiftspec.scheduler.controller import Controller, Steering
from swiftspec.scheduler.controls.control import Demand
from swiftspec.scheduler.controls.named import Fixed
from swiftspec.scheduler.controls.worth import Slo, Worth
from swiftspec.scheduler.costs import RoundCosts
from swiftspec.scheduler.survival import Survival
from swiftspec.timing.step_costs import ForwardCost, StepCosts

COSTS = StepCosts(
    verify=ForwardCost(rows=(1, 4), seconds=(1.0, 1.6)), draft=ForwardCost(rows=(1,), seconds=(0.1,)), num_levels=3
)

USELESS = StepCosts(verify=ForwardCost(rows=(1, 4), seconds=(1.0, 9.0)))  # where a row costs more than it can give


@dataclass
class Recording:
    """A control that asks for two rows each, and remembers what it was told."""

    learns: ClassVar[bool] = True
    weighs_drafts: ClassVar[bool] = False
    seen: list[list[Demand]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        assert max_rows > 0
        self.seen.append(list(demands))
        self.seconds.append(costs.verify_s(1, 1))
        return [min(2, 1 + len(each.survival)) for each in demands]


def verification(request: int, num_rows: int) -> Ask:
    return Ask(request, Role.TARGET, ForwardKind.EXACT, num_rows, is_elastic=True)


def verify(controller: Controller, accepted: dict[int, int], *, num_rows: int, now_s: float) -> None:
    """A step of some requests, of which so many tokens of a chain are accepted each."""
    controller.note_step([(verification(request, num_rows), num_rows) for request in accepted], now_s)
    for request, count in accepted.items():
        controller.note_commit(request, count + 1, now_s)
        controller.note_accepted(request, range(count + 1))


@dataclass
class Declining(Recording):
    """A control that drafts nothing."""

    learns: ClassVar[bool] = False
    weighs_drafts: ClassVar[bool] = False

    def rows(self, demands: Sequence[Demand], *, costs: RoundCosts, max_rows: int) -> list[int]:
        super().rows(demands, costs=costs, max_rows=max_rows)
        return [1] * len(demands)


@pytest.mark.parametrize(("tpot_s", "num_plans"), [(None, 1), (1.0, 5)])
def test_a_plan_without_drafts_stands_until_requests_come_unless_limits_come_closer(
    tpot_s: float | None, num_plans: int
) -> None:
    control = Declining()
    controller = Controller(control, COSTS, max_rows=64, num_first=0)
    controller.add(0, tpot_s=tpot_s)
    verify(controller, {0: 0}, num_rows=1, now_s=0.0)
    for step in range(1, 6):
        assert not controller.may_draft(0, 1, float(step))
        verify(controller, {0: 0}, num_rows=1, now_s=float(step))
    assert len(control.seen) == num_plans
    controller.add(1, tpot_s=tpot_s)
    assert not controller.may_draft(1, 1, 6.0)
    assert len(control.seen) == num_plans + 1


def test_the_first_steps_and_then_a_few_are_served_whole() -> None:
    controller = Controller(Recording(), COSTS, max_rows=64, num_first=2, explore_every=4)
    controller.add(0, tpot_s=None)
    rows = []
    for step in range(10):
        rows.append(controller.shares([verification(0, 4)], 64, float(step))[0])
        assert controller.may_draft(0, 3, float(step)) == (rows[-1] == 4)
        assert controller.may_draft(0, 1, float(step)) == (rows[-1] > 1)
        verify(controller, {0: 2}, num_rows=rows[-1], now_s=float(step))
    assert rows == [4, 4, 2, 2, 4, 2, 2, 2, 2, 4]


def test_pauses_double_while_nothing_is_drafted() -> None:
    controller = Controller(Worth(), USELESS, max_rows=64, num_first=2, explore_every=4)
    controller.add(0, tpot_s=None)
    whole = []
    for step in range(64):
        rows = controller.shares([verification(0, 4)], 64, float(step))[0]
        whole += [step] if rows == 4 else []
        verify(controller, {0: 0}, num_rows=rows, now_s=float(step))
    assert whole == [0, 1, 4, 12, 28, 60]


def test_an_exploration_waits_for_requests_that_draft() -> None:
    controller = Controller(Worth(), USELESS, max_rows=64, num_first=0, explore_every=4)
    controller.add(0, tpot_s=None)
    for step in range(6):
        verify(controller, {0: 0}, num_rows=1, now_s=float(step))
    assert controller.may_draft(0, 3, 6.0)  # it has been due since the fourth step
    verify(controller, {0: 0}, num_rows=4, now_s=6.0)
    assert not controller.may_draft(0, 1, 7.0)


def test_pauses_double_at_first_where_something_is_drafted() -> None:
    controller = Controller(Recording(), COSTS, max_rows=64, num_first=2, explore_every=20)
    controller.add(0, tpot_s=None)
    whole = []
    for step in range(70):
        rows = controller.shares([verification(0, 4)], 64, float(step))[0]
        whole += [step] if rows == 4 else []
        verify(controller, {0: 2}, num_rows=rows, now_s=float(step))
    assert whole == [0, 1, 9, 26, 47, 68]


def test_what_needs_no_estimates_is_not_explored_for() -> None:
    controller = Controller(Fixed(num_draft_rows=1), COSTS, max_rows=64, num_first=2, explore_every=4)
    controller.add(0, tpot_s=None)
    rows = []
    for step in range(10):
        rows.append(controller.shares([verification(0, 4)], 64, float(step))[0])
        verify(controller, {0: 2}, num_rows=rows[-1], now_s=float(step))
    assert rows == [4, 4, *[2] * 8]


def test_what_was_accepted_is_learnt_by_row_and_by_request() -> None:
    control = Recording()
    controller = Controller(control, COSTS, max_rows=64, num_first=0, explore_every=1000)
    for request in (0, 1):
        controller.add(request, tpot_s=None)
    for step in range(400):
        verify(controller, {0: 3, 1: step % 2}, num_rows=4, now_s=float(step))
    controller.shares([verification(0, 4), verification(1, 4)], 64, 400.0)
    easy, hard = (each.survival for each in control.seen[-1])
    # All rows of the one survive, and half of the first rows of the other; each is drawn towards the mean of both.
    assert easy == pytest.approx((0.89, 0.78, 0.78), abs=0.02)
    assert hard == pytest.approx((0.61, 0.22, 0.22), abs=0.03)
    controller.remove(0)
    controller.add(2, tpot_s=None)
    controller.shares([verification(2, 3)], 64, 401.0)
    assert control.seen[-1][0].survival == pytest.approx((0.75, 0.5), abs=0.03)  # of a newcomer: that of all


def test_what_was_planned_is_verified() -> None:
    control = Recording()
    controller = Controller(control, COSTS, max_rows=64, num_first=0, explore_every=1000)
    for request in (0, 1):
        controller.add(request, tpot_s=None)
    verify(controller, {0: 1, 1: 1}, num_rows=4, now_s=0.0)
    assert controller.may_draft(0, 1, 1.0)
    assert not controller.may_draft(1, 2, 1.0)
    assert control.seconds == [pytest.approx(1.0)]
    assert controller.shares([verification(0, 2), verification(1, 4)], 64, 1.0) == [2, 2]
    assert len(control.seen) == 1  # it was asked once
    controller.add(2, tpot_s=None)
    assert controller.shares([verification(0, 4), verification(2, 1)], 64, 1.0) == [2, 1]
    assert control.seconds[-1] == pytest.approx(1.0 + 3 * 0.1)  # a newcomer: what was drafted is paid


def test_tokens_due_follow_the_clock_from_the_first_token_on() -> None:
    control = Recording()
    controller = Controller(control, COSTS, max_rows=64, num_first=0, explore_every=1000)
    controller.add(0, tpot_s=0.5)
    controller.shares([verification(0, 2)], 64, 10.0)
    assert control.seen[-1][0].tokens_due == 0.0  # before its first token
    verify(controller, {0: 2}, num_rows=4, now_s=10.0)  # the first of three tokens is no token after the first
    verify(controller, {0: 0}, num_rows=4, now_s=12.0)  # a step takes 2 s
    controller.shares([verification(0, 2)], 64, 13.0)
    # By 15.0 it needs 5 / 0.5 tokens, and has 3.
    assert control.seen[-1][0].tokens_due == pytest.approx(7.0)


def test_estimates_never_rise_and_end_where_nothing_was_seen() -> None:
    survival = Survival()
    assert survival.of(0, 5) == ()
    for _ in range(50):
        survival.note(0, 3, (0, 2))  # a second child is accepted, the first never
    assert survival.of(0, 5) == pytest.approx((0.0, 0.0))
    assert survival.most_rows == 3


def test_policies_that_cannot_be_cut_cannot_be_controlled() -> None:
    assert Steering.of(make_policy("swiftspec"), Slo(), COSTS) == (Slo(), COSTS)
    with pytest.raises(ValueError, match="policy is pearl, whose verifications cannot be cut"):
        Steering.of(make_policy("pearl"), Slo(), COSTS)
    with pytest.raises(ValueError, match="the plan lacks the costs of swiftspec's steps, which a control needs"):
        Steering.of(make_policy("swiftspec"), Slo(), None)


def test_a_control_that_weighs_drafts_hears_how_likely_this_rounds_rows_are() -> None:
    control = Recording()
    vars(control)["weighs_drafts"] = True
    controller = Controller(control, COSTS, max_rows=64, num_first=0)
    for request in range(2):
        controller.add(request, tpot_s=None)
    easy, hard = (
        verification(request, 3)._replace(log_probs=log_probs)
        for request, log_probs in enumerate([(-0.01, -0.02), (-1.0, -2.0)])
    )
    assert controller.shares([easy, hard, verification(1, 3)], 64, 0.0) == [2, 2, 1]
    first, second, unknown = control.seen[-1]
    assert first.survival > second.survival
    assert second.survival == pytest.approx((0.368, 0.135), abs=0.001)
    assert unknown.survival == ()
    for step in range(100):  # what seems hard is accepted
        controller.note_step([(hard, 3)], float(step))
        controller.note_accepted(1, (0, 1, 2))
    controller.shares([easy, hard], 64, 100.0)
    assert min(control.seen[-1][1].survival) > 0.85


def test_a_control_hears_what_long_texts_add_to_a_round() -> None:
    control = Recording()
    costs = COSTS.model_copy(update={"context": 100, "token_s": (1e-3, 5e-4)})
    controller = Controller(control, costs, max_rows=64, num_first=0)
    for request in range(2):
        controller.add(request, tpot_s=None)
        controller.note_read(request, 100)
    controller.may_draft(0, 1, 0.0)
    controller.note_commit(0, 100, 1.0)  # 150 tokens in the mean
    controller.add(2, tpot_s=None)
    controller.remove(2)
    controller.note_step([(verification(request, 1), 1) for request in range(2)], 1.0)
    controller.may_draft(0, 1, 1.0)
    usual_s, longer_s = control.seconds
    assert longer_s - usual_s == pytest.approx(50 * (1e-3 + 5e-4))
