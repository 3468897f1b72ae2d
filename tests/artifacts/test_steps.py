import pickle

import pytest

from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase
from tests.builders import divided_profile, machine_profile
from tests.planner.pairs import composed_profile

COMPOSED = composed_profile(num_devices=2)
VERIFY = StepKey(Role.TARGET, Phase.VERIFY, degree=2, rows=10, context=700)
EXPAND = VERIFY._replace(role=Role.DRAFT, phase=Phase.EXPAND)


def test_latencies_are_the_profiles_and_survive_a_copy() -> None:
    for profile in (COMPOSED, machine_profile()):
        copied: Latencies = pickle.loads(pickle.dumps(profile.latencies))
        for rows, context in ((1, 0), (10, 700), (90, 9000)):
            key = VERIFY._replace(peer_busy=True, rows=rows, context=context)
            assert copied.step(key) == profile.step(key)
        assert copied.host_latency(Phase.SEND) == profile.latencies.host_latency(Phase.SEND)


def test_a_stretched_part_adds_what_it_gains() -> None:
    before = COMPOSED.latencies.step(VERIFY)
    stretched = COMPOSED.latencies.changed(
        lambda _, grid: grid.stretched(lambda name: 1.5 if name == "all_reduce" else 1.0)
    )
    after = stretched.step(VERIFY)
    (reduced,) = (part.seconds for part in before.parts if part.name == "all_reduce")
    assert after.mean_s == pytest.approx(before.mean_s + 0.5 * reduced)
    assert sum(part.seconds for part in after.parts) == pytest.approx(after.mean_s)
    assert after.provenance is Provenance.COMPOSED


def test_steps_without_parts_have_none_to_stretch() -> None:
    latencies = machine_profile().latencies
    changed = latencies.changed(lambda _, grid: grid.stretched(lambda name: 2.0 if name else 1.0))
    assert changed.step(VERIFY) == latencies.step(VERIFY)
    assert not any(grid.part_names for grid in latencies.steps.values())


def test_scaled_steps_are_longer_in_every_part() -> None:
    before = COMPOSED.latencies.step(EXPAND)
    scaled = COMPOSED.latencies.changed(lambda table, grid: grid.scaled(3) if table.role is Role.DRAFT else grid)
    after = scaled.step(EXPAND)
    assert after.mean_s == pytest.approx(3 * before.mean_s)
    assert [part.seconds for part in after.parts] == pytest.approx([3 * part.seconds for part in before.parts])
    assert scaled.step(VERIFY) == COMPOSED.step(VERIFY)


def test_groups_that_ranks_divide_have_steps_of_their_own() -> None:
    latencies = divided_profile(factor=3.0).latencies
    whole, divided = (latencies.step(VERIFY._replace(ranks=ranks)) for ranks in (1, 2))
    assert divided.mean_s == pytest.approx(3 * whole.mean_s)
    assert latencies.ranks(2, role=Role.TARGET) == [1, 2]
    assert latencies.ranks(1, role=Role.TARGET) == [1]
    assert latencies.degrees(Phase.VERIFY, role=Role.TARGET, ranks=2) == [2]


def test_ranks_that_were_not_measured_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"degree is 2, but the target's verify steps of 4 ranks were measured at none"
    ):
        machine_profile().latencies.step(VERIFY._replace(ranks=4))
