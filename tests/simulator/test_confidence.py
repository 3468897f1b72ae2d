"""Rows by the draft's own probabilities, against fixed numbers of rows: the bundled parallel draft, simulated."""

from functools import cache

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, make_policy
from tools.confidence import RECORDED, record, served

pytestmark = pytest.mark.extra("engine")

ONE, EIGHT = 1, 8  # clients


@pytest.fixture(scope="module")
def trace() -> AcceptanceTrace:
    return record(8)


@cache
def profile() -> Profile:
    return Profile.load(RECORDED / Plan.load(RECORDED / "plan.json").profile.path)


def chain(length: int) -> Policy:
    return make_policy("parallel_chain", num_draft_tokens=length)


def tree(rows: int) -> Policy:
    return make_policy("parallel_tree", verify_rows=rows, num_masks=5)


def confident(least: float) -> Policy:
    return make_policy("parallel_tree", verify_rows=16, num_masks=5, least_probability=least)


def test_rows_by_probability_are_worth_their_time(trace: AcceptanceTrace) -> None:
    """A row is worth its time multiplied by the tokens per second: 0.06 tokens for one client, 0.3 for eight."""

    def speed(policy: Policy, clients: int) -> float:
        return served(policy, None, trace, profile(), clients=clients)

    cautious, bold = confident(0.3), confident(0.1)
    assert speed(bold, ONE) > 1.05 * speed(cautious, ONE)
    assert speed(cautious, EIGHT) > 1.05 * speed(bold, EIGHT)
    # Against the best of fixed lengths and sizes, which nobody knows beforehand.
    assert speed(bold, ONE) > 1.05 * max(speed(chain(length), ONE) for length in (3, 4, 5))
    assert speed(bold, ONE) > 0.98 * max(speed(tree(rows), ONE) for rows in (6, 8, 12))
    assert speed(cautious, EIGHT) > 1.01 * max(speed(tree(rows), EIGHT) for rows in (2, 3, 4))
    assert speed(cautious, EIGHT) > 0.96 * max(speed(chain(length), EIGHT) for length in (1, 2))
