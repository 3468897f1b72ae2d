"""Warm-up costs: what pauses of several lengths cost the forwards after them, and profiles with such costs."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase
from swiftspec.timing.warm_up import FREE_COLD_PAUSE_S, FREE_PAUSE_S, WarmUpCost, WeightCache
from tests.builders import constant_profile

EVICTED_S = 0.02


def cost(**changes: Any) -> WarmUpCost:
    facts: dict[str, Any] = {
        "role": Role.TARGET,
        "degree": 1,
        "rows": (1, 9),
        "extra_s": (2e-3, 1e-3),
        "left": 0.5,
        "evicted_s": EVICTED_S,
        "provenance": Provenance.MEASURED,
    }
    return WarmUpCost(**facts | changes)


def test_the_extra_time_falls_with_rows_and_ends_with_the_last_known_ones() -> None:
    found = [cost().extra(rows, evicted=0.5) for rows in (1, 5, 9, 10)]
    assert found == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.0])


def test_a_pause_evicts_a_share_and_every_forward_brings_some_of_it_back() -> None:
    cache, now_s = WeightCache(cost()), FREE_PAUSE_S + EVICTED_S
    extra_s = []
    for _ in range(3):
        extra_s.append(cache.begin(Phase.VERIFY, 1, now_s=now_s))
        now_s += 5e-3
        cache.end(Phase.VERIFY, 1, now_s=now_s)
    assert extra_s == pytest.approx([2e-3 * (1 - math.exp(-1)) * 0.5**forward for forward in range(3)])


def test_pauses_as_between_the_forwards_of_a_policy_cost_nothing() -> None:
    cache = WeightCache(cost())
    for forward in range(1, 50):
        assert cache.begin(Phase.VERIFY, 1, now_s=forward * FREE_PAUSE_S) == 0.0
        cache.end(Phase.VERIFY, 1, now_s=forward * FREE_PAUSE_S)


def test_times_of_cold_steps_have_a_longer_pause_in_them() -> None:
    after_s = FREE_COLD_PAUSE_S + EVICTED_S
    assert WeightCache(cost()).begin(Phase.VERIFY, 1, now_s=FREE_COLD_PAUSE_S, cold=True) == 0.0
    extra_s = WeightCache(cost()).begin(Phase.VERIFY, 1, now_s=after_s, cold=True)
    assert extra_s == pytest.approx(2e-3 * (1 - math.exp(-1)))
    assert WeightCache(cost()).begin(Phase.VERIFY, 1, now_s=after_s) > extra_s


def test_a_prompt_counts_as_a_pause_and_is_no_slower_for_one() -> None:
    cache = WeightCache(cost())
    assert cache.begin(Phase.PREFILL, 100, now_s=10.0) == 0.0
    cache.end(Phase.PREFILL, 100, now_s=10.05)
    assert cache.begin(Phase.VERIFY, 1, now_s=10.05) == pytest.approx(2e-3, rel=1e-3)  # evicted before it, and still
    warm = WeightCache(cost(), now_s=10.0)
    warm.begin(Phase.PREFILL, 100, now_s=10.0)
    warm.end(Phase.PREFILL, 100, now_s=10.0 + FREE_PAUSE_S + EVICTED_S)
    extra_s = warm.begin(Phase.VERIFY, 1, now_s=10.0 + FREE_PAUSE_S + EVICTED_S)
    assert extra_s == pytest.approx(2e-3 * (1 - math.exp(-1)))


def test_two_halves_cost_what_a_whole_forward_costs() -> None:
    whole, halved = WeightCache(cost()), WeightCache(cost())
    first_s = whole.begin(Phase.VERIFY, 1, now_s=1.0)
    whole.end(Phase.VERIFY, 1, now_s=1.01)
    assert halved.begin(Phase.EXIT, 1, now_s=1.0) == pytest.approx(first_s / 2)
    halved.end(Phase.EXIT, 1, now_s=1.005)
    halved.begin(Phase.FINISH, 1, now_s=1.005)
    halved.end(Phase.FINISH, 1, now_s=1.01)
    assert halved.begin(Phase.VERIFY, 1, now_s=1.01) == pytest.approx(whole.begin(Phase.VERIFY, 1, now_s=1.01))


@pytest.mark.parametrize(
    "wrong",
    [{"rows": (9, 1)}, {"rows": (1, 1)}, {"extra_s": (1e-3,)}, {"left": 1.0}, {"evicted_s": 0.0}, {"rows": ()}],
)
def test_impossible_costs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rows|left|evicted_s"):
        cost(**wrong)


def test_a_profile_keeps_them_and_older_ones_stay_as_they_were(tmp_path: Path) -> None:
    plain = constant_profile(expand_s=1e-3, verify_s=4e-3)
    assert "warm_up" not in json.loads(plain.to_bytes())
    known = plain.model_copy(update={"warm_up": (cost(), cost(degree=2))})
    known.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json").warm_up == known.warm_up
    with pytest.raises(ValueError, match=r"warm_up holds 2 entries of \(target, 1, 1\); expected one each"):
        Profile(**{name: getattr(plain, name) for name in Profile.model_fields} | {"warm_up": (cost(), cost())})


def test_retimed_profiles_scale_them_with_the_verifications() -> None:
    known = constant_profile(expand_s=1e-3, verify_s=4e-3).model_copy(update={"warm_up": (cost(),)})
    tables = {step.table for step in known.steps if step.phase is Phase.VERIFY and step.degree == 1}
    (again,) = known.retimed(dict.fromkeys(tables, 1.5)).warm_up
    assert again.extra_s == pytest.approx((3e-3, 1.5e-3))
    assert again.evicted_s == EVICTED_S
