"""Controls against brute force, published figures and their own promises."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.scheduler.controls.control import Control, Demand
from swiftspec.scheduler.controls.named import (
    CONTROLS,
    NO_CONTROL,
    Fixed,
    Goodput,
    GoodputPerRequest,
    control_under,
    goodput_by_length,
    named_control,
)
from swiftspec.scheduler.controls.worth import DraftRound, Slo, Worth, add_due
from swiftspec.scheduler.costs import RoundCosts
from swiftspec.timing.step_costs import ForwardCost, StepCosts

ALL: tuple[Control, ...] = (Fixed(num_draft_rows=3), Goodput(), GoodputPerRequest(), Worth(), Slo())
FLAT = StepCosts(verify=ForwardCost(rows=(1,), seconds=(1.0,)))

survivals = st.lists(st.floats(0, 1), max_size=4).map(lambda found: tuple(sorted(found, reverse=True)))
demands = st.lists(st.builds(Demand, survivals, st.floats(0, 6)), min_size=1, max_size=3)
stairs = st.builds(
    lambda rises, draft_s: StepCosts(
        verify=ForwardCost(rows=tuple(range(1, 14)), seconds=tuple(1 + sum(rises[:n]) for n in range(13))),
        draft=ForwardCost(rows=(1, 8), seconds=(draft_s, 1.5 * draft_s)),
        num_levels=4,
    ),
    st.lists(st.sampled_from((0.0, 0.05, 0.6)), min_size=13, max_size=13),
    st.sampled_from((0.0, 0.1, 0.5)),
)


def goodput(found: Sequence[Demand], rows: Sequence[int], costs: RoundCosts) -> float:
    """Expected tokens per second of a round, straight from its definition."""
    tokens = sum(1 + sum(each.survival[: count - 1]) for each, count in zip(found, rows, strict=True))
    seconds = costs.verify_s(len(rows), sum(rows))
    for level in range(1, max(rows)):
        seconds += costs.level_s(level, sum(count > level for count in rows))
    return tokens / seconds


@settings(max_examples=200, deadline=None)
@given(found=demands, costs=stairs, max_rows=st.integers(1, 16))
def test_rows_are_within_what_there_is(found: list[Demand], costs: StepCosts, max_rows: int) -> None:
    for control in ALL:
        rows = control.rows(found, costs=costs, max_rows=max_rows)
        assert all(1 <= count <= 1 + len(each.survival) for count, each in zip(rows, found, strict=True))
        assert sum(rows) <= max(max_rows, len(found))


@settings(max_examples=200, deadline=None)
@given(found=demands, costs=stairs, max_rows=st.integers(3, 16))
def test_goodput_is_the_best_common_length(found: list[Demand], costs: StepCosts, max_rows: int) -> None:
    lengths = [
        [1 + min(length, len(each.survival)) for each in found]
        for length in range(1 + max(len(each.survival) for each in found))
    ]
    best = max(goodput(found, rows, costs) for rows in lengths if sum(rows) <= max(max_rows, len(found)))
    assert goodput(found, Goodput().rows(found, costs=costs, max_rows=max_rows), costs) == pytest.approx(best)


@settings(max_examples=100, deadline=None)
@given(found=demands, costs=stairs, max_rows=st.integers(3, 16))
def test_worth_is_the_best_division_where_drafting_is_free(
    found: list[Demand], costs: StepCosts, max_rows: int
) -> None:
    free = StepCosts(verify=costs.verify)
    every = product(*(range(1, 2 + len(each.survival)) for each in found))
    best = max(goodput(found, rows, free) for rows in every if sum(rows) <= max(max_rows, len(found)))
    assert goodput(found, Worth().rows(found, costs=free, max_rows=max_rows), free) == pytest.approx(best)


@settings(max_examples=200, deadline=None)
@given(found=demands, costs=stairs, max_rows=st.integers(3, 16))
def test_worth_is_no_worse_than_no_speculation(found: list[Demand], costs: StepCosts, max_rows: int) -> None:
    rows = Worth().rows(found, costs=costs, max_rows=max_rows)
    assert goodput(found, rows, costs) >= goodput(found, [1] * len(found), costs) * (1 - 1e-9)


@settings(max_examples=200, deadline=None)
@given(found=demands, max_rows=st.integers(3, 16))
def test_slo_gives_what_is_due_or_all_there_is(found: list[Demand], max_rows: int) -> None:
    rows = rows_due(found, max_rows=max_rows)
    full = sum(rows) == max(max_rows, len(found))
    for each, count in zip(found, rows, strict=True):
        tokens = 1 + sum(each.survival[: count - 1])
        assert full or tokens >= each.tokens_due or count == 1 + len(each.survival)
        # No row beyond what is due.
        assert count == 1 or tokens - each.survival[count - 2] < each.tokens_due


def rows_due(found: Sequence[Demand], *, max_rows: int, costs: RoundCosts = FLAT) -> list[int]:
    begun = DraftRound(found, costs)
    add_due(begun, found, max_rows=max_rows)
    return begun.rows


@settings(max_examples=100, deadline=None)
@given(found=demands, costs=stairs, max_rows=st.integers(3, 16))
def test_a_round_knows_its_tokens_and_seconds(found: list[Demand], costs: StepCosts, max_rows: int) -> None:
    begun = DraftRound(found, costs)
    for index, demand in enumerate(found):
        while begun.rows[index] <= len(demand.survival) and sum(begun.rows) < max_rows:
            longer_s = begun.longer_s(index)
            begun.add(index)
            assert begun.seconds == pytest.approx(longer_s)
    assert begun.tokens / begun.seconds == pytest.approx(goodput(found, begun.rows, costs))
    assert sum(begun.tokens_of) == pytest.approx(begun.tokens)


def test_what_is_due_is_not_bought_with_rows_that_slow_the_request_itself() -> None:
    dear = StepCosts(verify=ForwardCost(rows=(1, 2, 8), seconds=(1.0, 1.1, 4.0)))
    assert rows_due([Demand((0.9, 0.2), 3.0)], max_rows=64, costs=dear) == [2]


def test_slo_serves_who_is_due_most_first() -> None:
    found = [Demand((0.9, 0.8, 0.7), 2.0), Demand((0.9, 0.8, 0.7), 3.0), Demand((0.9, 0.8, 0.7))]
    assert rows_due(found, max_rows=7) == [2, 4, 1]


def test_what_is_left_of_a_budget_goes_to_the_likeliest_rows() -> None:
    # With a budget and no costs, as AdaServe: rows that nobody is due are those with the highest survival.
    found = [Demand((0.5, 0.4)), Demand((0.9, 0.1)), Demand((0.95, 0.9, 0.2), 2.5)]
    assert Slo().rows(found, costs=FLAT, max_rows=7) == [2, 2, 3]


@dataclass(frozen=True)
class Published:
    """SmartSpec's fits for Llama-3.1-8B and an EAGLE head on one H100: `config.py` of its `batch-dsd` branch.

    Coefficients in ms; 1024 tokens of context a request, 5 % overhead where anything is drafted.
    """

    context: int = 1024

    def verify_s(self, num_sequences: int, num_rows: int) -> float:
        return self._target_s(num_sequences, num_rows) * (1.05 if num_rows > num_sequences else 1.0)

    def _target_s(self, num_sequences: int, num_rows: int) -> float:
        attended = num_sequences * self.context
        ms = 4.8591e-5 * attended + 1.84384e-2 * num_rows - 4.3314e-2 * num_sequences + 6.9387
        return ms / 1e3

    def level_s(self, level: int, num_sequences: int) -> float:
        ms = 4.387e-5 * num_sequences + 0.45218
        if level == 1:  # what it costs to draft anything
            ms += 2.897e-6 * num_sequences * self.context + (4.387e-5 + 5.528e-3) * num_sequences + 0.44711
        return ms / 1e3


SURVIVAL = (0.71, 0.38, 0.21, 0.08, 0.05)  # tokens per round of 1.71, 2.09, 2.30, 2.38 and 2.43


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (1, (144, 208, 240, 250, 247, 240)),
        (8, (1121, 1587, 1812, 1871, 1824, 1760)),
        (32, (4137, 5519, 6087, 6102, 5798, 5473)),
        (64, (7502, 9398, 10027, 9792, 9106, 8442)),
        (128, (12644, 14490, 14828, 14034, 12739, 11585)),
        (256, (19236, 19874, 19494, 17915, 15914, 14234)),
    ],
)
def test_goodput_of_smartspec_s_published_fits(batch: int, expected: tuple[int, ...]) -> None:
    found = [Demand(SURVIVAL)] * batch
    lengths = list(goodput_by_length(found, costs=Published(), max_rows=10_000))
    assert [each.tokens_per_s for each in lengths] == pytest.approx(expected, rel=0.005)
    best = max(range(6), key=expected.__getitem__)
    assert Goodput().rows(found, costs=Published(), max_rows=10_000) == [1 + best] * batch


def test_a_dip_does_not_end_the_search() -> None:
    # Padding makes the second row dear and the third free; whoever stops at the first fall never speculates.
    costs = StepCosts(verify=ForwardCost(rows=(1, 2, 3), seconds=(1.0, 2.0, 2.0)))
    found = [Demand((0.9, 0.9))]
    lengths = [each.tokens_per_s for each in goodput_by_length(found, costs=costs, max_rows=64)]
    assert lengths[1] < lengths[0] < lengths[2]
    assert Goodput().rows(found, costs=costs, max_rows=64) == Worth().rows(found, costs=costs, max_rows=64) == [3]


def test_per_request_lengths_follow_acceptance() -> None:
    found = [Demand((0.9,) * 6), Demand((0.3,) * 6)]
    costs = StepCosts(verify=ForwardCost(rows=(1, 6, 7), seconds=(1.0, 1.0, 9.0)))
    assert Goodput().rows(found, costs=costs, max_rows=64) == [3, 3]
    assert GoodputPerRequest().rows(found, costs=costs, max_rows=64) == [4, 2]


def test_worth_takes_likely_rows_of_one_before_unlikely_ones_of_another() -> None:
    costs = StepCosts(verify=ForwardCost(rows=(1, 5, 6), seconds=(1.0, 1.0, 9.0)))
    found = [Demand((0.9, 0.8, 0.7)), Demand((0.2, 0.1, 0.05))]
    assert Worth().rows(found, costs=costs, max_rows=64) == [4, 1]


@pytest.mark.parametrize("make", [Goodput, GoodputPerRequest, Worth, Slo])
def test_a_useless_draft_is_turned_off(make: Callable[[], Control]) -> None:
    costs = StepCosts(
        verify=ForwardCost(rows=(1, 8), seconds=(1.0, 1.2)),
        draft=ForwardCost(rows=(1,), seconds=(0.05,)),
        num_levels=4,
    )
    found = [Demand((0.02, 0.0, 0.0, 0.0))] * 4
    assert make().rows(found, costs=costs, max_rows=64) == [1] * 4


def test_controls_have_names() -> None:
    assert CONTROLS == ("fixed:K", "goodput", "goodput-per-request", "worth", "slo")
    assert named_control("fixed:0") == Fixed(num_draft_rows=0)
    assert [type(named_control(name)) for name in CONTROLS[1:]] == [Goodput, GoodputPerRequest, Worth, Slo]
    for name in ("fixed", "fixed:-1", "fixed:x", "best", ""):
        with pytest.raises(ValueError, match=f"control is '{name}'; expected one of fixed:K, goodput"):
            named_control(name)


def test_a_given_control_comes_before_the_planned_one() -> None:
    assert control_under(None, None) is None
    assert isinstance(control_under(None, "goodput"), Goodput)
    assert isinstance(control_under("slo", "goodput"), Slo)
    assert control_under(NO_CONTROL, "goodput") is None
    with pytest.raises(ValueError, match="control is 'best'"):
        control_under(None, "best")


def test_forwards_cost_what_lies_between_the_known_ones() -> None:
    cost = ForwardCost(rows=(1, 4, 8), seconds=(1.0, 2.5, 2.5), sequence_s=0.25)
    assert [cost(1, rows) for rows in (1, 2, 4, 6, 8, 12)] == [1.0, 1.5, 2.5, 2.5, 2.5, 2.5]
    assert cost(3, 8) == 3.0
    rising = ForwardCost(rows=(1, 3), seconds=(1.0, 2.0))
    assert rising(1, 7) == 4.0
    with pytest.raises(ValueError, match=r"rows are \(2, 4\); expected ascending numbers from 1"):
        ForwardCost(rows=(2, 4), seconds=(1.0, 2.0))
    with pytest.raises(ValueError, match="expected 2 of them"):
        ForwardCost(rows=(1, 4), seconds=(1.0,))
