from swiftspec.artifacts.plan import Objective
from tests.planner.robustness import SCALES, WHOSE, Case, Checked, cases, check, is_robust

CASE = Case(
    target="llama-3.1-8b",
    draft="llama-3.2-1b",
    device="h100-sxm",
    num_devices=2,
    quant="bf16",
    objective=Objective.TOKENS_PER_S,
)


def test_a_plan_loses_little_where_forwards_are_a_little_slower() -> None:
    """A single one; `python -m tests.planner.robustness` checks fifty."""
    found = check(CASE)
    assert is_robust([found]), found
    faster, slower = found.changes["all"]
    assert slower < 0 < faster
    assert abs(found.predicted / found.simulated - 1) < 0.03


def test_one_plan_in_ten_may_change_by_more() -> None:
    def checked(change: float) -> Checked:
        changes = dict.fromkeys(WHOSE, (0.0,) * len(SCALES)) | {"draft": (0.0, -change)}
        return Checked(case=CASE, chosen="swiftspec 1+1", predicted=1.0, simulated=1.0, changes=changes, seconds=0.0)

    assert is_robust([checked(0.01)] * 9 + [checked(0.2)])
    assert not is_robust([checked(0.01)] * 8 + [checked(0.2)] * 2)


def test_cases_come_in_the_same_order_from_the_same_seed() -> None:
    one, other = list(cases(seed=0)), list(cases(seed=0))
    assert one == other
    assert len(set(one)) == len(one) > 500
    assert one != list(cases(seed=1))
