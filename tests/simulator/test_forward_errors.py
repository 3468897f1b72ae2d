import numpy as np
import pytest

from swiftspec.policies.effects import Role
from swiftspec.simulator.forward_errors import COMPOSED, EXACT, ROOFLINE, ForwardErrors, forward_errors
from swiftspec.timing.latency import Provenance
from tests.builders import machine_profile
from tests.planner.pairs import composed_profile

FIVE_PERCENT = ForwardErrors(of_role=dict.fromkeys(Role, 0.05))


def test_factors_have_mean_1_and_the_known_deviation() -> None:
    drawn = np.array([list(FIVE_PERCENT.scales(seed=0, index=index).values()) for index in range(400)])
    assert drawn.mean(axis=0) == pytest.approx([1.0, 1.0], abs=0.002)
    assert drawn.std(axis=0) == pytest.approx([0.05, 0.05], rel=0.03)
    assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(0.0, abs=0.05)


def test_a_few_prompts_meet_both_longer_and_shorter_forwards() -> None:
    for seed in range(10):
        drawn = np.array([list(FIVE_PERCENT.scales(seed=seed, index=index).values()) for index in range(8)])
        assert (drawn.min(axis=0) < 0.97).all()
        assert (drawn.max(axis=0) > 1.03).all()


def test_mirrored_factors_are_the_opposites() -> None:
    one, other = (FIVE_PERCENT.scales(seed=3, index=7, mirrored=mirrored) for mirrored in (False, True))
    for role in Role:
        assert one[role] * other[role] == pytest.approx(np.exp(-(0.05**2)))
        assert one[role] != other[role]


def test_the_same_seed_and_prompt_have_the_same_factors() -> None:
    assert FIVE_PERCENT.scales(seed=1, index=2) == FIVE_PERCENT.scales(seed=1, index=2)
    assert FIVE_PERCENT.scales(seed=1, index=2) != FIVE_PERCENT.scales(seed=2, index=2)


def test_nothing_is_drawn_where_forwards_are_exact() -> None:
    assert not EXACT
    assert EXACT.scales(seed=0, index=0) == {}
    assert EXACT.mirrors == (False,)


def test_measured_forwards_are_exact_and_composed_ones_are_not() -> None:
    assert not forward_errors(machine_profile())
    assert forward_errors(composed_profile(num_devices=1)).of_role == pytest.approx(dict.fromkeys(Role, COMPOSED))


def test_rooflines_are_known_less_well() -> None:
    rooflines = forward_errors(composed_profile(num_devices=1, provenance=Provenance.ROOFLINE))
    assert rooflines.of_role == pytest.approx(dict.fromkeys(Role, np.hypot(COMPOSED, ROOFLINE)))
