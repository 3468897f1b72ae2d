"""AdaServe's experiment: what is published of it, its requests, its rule, and the order of the systems."""

import pytest

from swiftspec.acceptance.model import tree_acceptance
from swiftspec.scheduler.controls.control import Demand
from swiftspec.studies.adaserve.experiment import MODELS, SYSTEMS, acceptance_model, serve
from swiftspec.studies.adaserve.requests import FIGURES, Setting, jobs
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


def rule(budget: int, *, draft_rows: int = 64, most_width: int = 8) -> FilledBudget:
    return FilledBudget(budget_rows=budget, draft_rows=draft_rows, least_depth=2, most_depth=8, most_width=most_width)


def rows(*demands: Demand, budget: int) -> list[int]:
    return rule(budget).rows(demands, costs=NoCosts(), max_rows=budget)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("number", FIGURES)
def test_every_system_has_published_figures_at_every_point(number: int, model: str) -> None:
    figure = FACTS["figures"][str(number)][model]
    for quantity in {"attainment", "goodput_tokens_per_s"} & figure.keys():
        assert figure[quantity].keys() == set(SYSTEMS)
        assert {len(values) for values in figure[quantity].values()} == {len(figure["at"])}


@pytest.mark.parametrize("model", MODELS)
def test_every_rate_has_a_list_of_requests(model: str) -> None:
    rates = FACTS["figures"]["8"][model]["at"]
    counts = [len(jobs(Setting(rate=rate), step_s=0.03, windows=slice(None))) for rate in rates]
    # The names are rounded: two rates in a row can have one list.
    assert counts == sorted(counts)
    assert [count / 360 for count in counts] == pytest.approx(rates, rel=0.06)


def test_classes_of_the_bursts_peak_in_turn() -> None:
    limits = [job.tpot_s for job in jobs(Setting(rate=None), step_s=0.03, windows=slice(None))]
    third = len(limits) // 3
    most = [max(set(part), key=part.count) for part in (limits[:third], limits[third:-third], limits[-third:])]
    assert most == [0.05, pytest.approx(0.036), 0.15]


def test_a_setting_has_its_share_of_coding_requests_and_their_limit() -> None:
    found = jobs(Setting(coding=0.9, scale=0.8), step_s=0.03, windows=slice(None))
    coding = [job for job in found if job.tpot_s == pytest.approx(0.024)]
    assert len(coding) / len(found) == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("model", MODELS)
def test_a_token_is_accepted_as_often_as_published_whatever_came_before_it(model: str) -> None:
    share = FACTS["models"][model]["accepted_share"]
    expected = [share**number for number in range(1, 5)]
    assert tree_acceptance(acceptance_model(model), (1, 1, 1, 1)) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("num_requests", "depth"), [(1, 8), (4, 7), (6, 4), (16, 2)])
def test_trees_become_shallower_with_the_number_of_requests(num_requests: int, depth: int) -> None:
    assert rule(32).depth(num_requests) == depth


@pytest.mark.parametrize(("num_requests", "width"), [(1, 3), (4, 3), (6, 2), (16, 1)])
def test_trees_become_narrower_with_the_number_of_requests(num_requests: int, width: int) -> None:
    assert rule(32, draft_rows=12, most_width=3).width(num_requests) == width


def test_a_narrow_beam_has_fewer_rows_than_the_budget() -> None:
    likely = Demand((0.9,) * 20)
    assert rule(64, draft_rows=2, most_width=3).rows([likely] * 2, costs=NoCosts(), max_rows=64) == [9, 9]


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
    setting = Setting(rate=4.8)
    attained = [
        serve(name, MODELS[0], setting, windows=BUSY).attainment for name in ("AdaServe", "vLLM-spec(8)", "vLLM")
    ]
    assert attained[0] > attained[1] + 0.1
    assert attained[1] > attained[2] + 0.05
