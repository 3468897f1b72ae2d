"""AdaServe's experiment: what is published of it, its rule, and the order of the systems."""

import pytest

from swiftspec.acceptance.model import tree_acceptance
from swiftspec.scheduler.controls.control import Demand
from swiftspec.studies.adaserve.experiment import SYSTEMS, acceptance_model, serve
from swiftspec.studies.adaserve.rule import FilledBudget
from swiftspec.studies.backtest.published import read_facts

FACTS = read_facts("adaserve")
BUSY = slice(16, 18)  # 20 of the 360 seconds


class NoCosts:
    """Costs of rounds that nothing should ask for."""

    def verify_s(self, num_sequences: int, num_rows: int, /) -> float:
        raise AssertionError("rows cost nothing")

    def level_s(self, level: int, num_sequences: int, /) -> float:
        raise AssertionError("drafts cost nothing")


def rows(*demands: Demand, budget: int) -> list[int]:
    rule = FilledBudget(budget_rows=budget, least_depth=2, most_depth=8)
    return rule.rows(demands, costs=NoCosts(), max_rows=budget)


def test_every_system_has_published_figures_at_every_rate() -> None:
    for figure in ("attainment", "goodput_tokens_per_s"):
        assert FACTS[figure].keys() == set(SYSTEMS)
        assert {len(values) for values in FACTS[figure].values()} == {len(FACTS["requests_per_s"])}
    assert {len(counts) for counts in FACTS["requests_by_window"].values()} == {36}


def test_a_token_is_accepted_as_often_as_published_whatever_came_before_it() -> None:
    share = FACTS["accepted_share"]
    expected = [share**number for number in range(1, 5)]
    assert tree_acceptance(acceptance_model(), (1, 1, 1, 1)) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("num_requests", "depth"), [(1, 8), (4, 7), (6, 4), (16, 2)])
def test_trees_become_shallower_with_the_number_of_requests(num_requests: int, depth: int) -> None:
    assert FilledBudget(budget_rows=32, least_depth=2, most_depth=8).depth(num_requests) == depth


def test_the_budget_is_always_used_up() -> None:
    unlikely = Demand((0.1,) * 20)
    assert rows(unlikely, unlikely, budget=16) == [8, 8]
    assert rows(unlikely, unlikely, budget=64) == [21, 21]


def test_who_is_due_most_is_served_first_but_not_for_more_than_its_part() -> None:
    likely, due = Demand((0.9,) * 20), Demand((0.1,) * 20, tokens_due=3.0)
    # Its 9 rows, 1.2 times the half of the budget, are too few for two tokens; without a debt it would have one.
    assert rows(likely, due, budget=16) == [6, 10]
    assert rows(likely, due._replace(tokens_due=0.0), budget=16) == [15, 1]


def test_under_load_adaserve_keeps_more_limits_than_fixed_drafts_and_those_more_than_none() -> None:
    attained = [serve(name, 4.8, windows=BUSY).attainment for name in ("AdaServe", "vLLM-spec(8)", "vLLM")]
    assert attained[0] > attained[1] + 0.1
    assert attained[1] > attained[2] + 0.05
