"""Sharing costs: fits of known costs, their lookup, and profiles with and without them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import Sharing, SharingCost, SharingPoint, fit_costs
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase
from tests.builders import constant_profile
from tests.test_architecture import ROOT

SEQUENCE_S, SLOT_S = 3e-4, 2e-6


def point(sequences: int, rows: int, context: int, median_s: float, **changes: Any) -> SharingPoint:
    facts: dict[str, Any] = {
        "role": Role.TARGET,
        "degree": 1,
        "peer_busy": False,
        "sequences": sequences,
        "rows": rows,
        "context": context,
        "median_s": median_s,
        "num_samples": 9,
        "provenance": Provenance.MEASURED,
    }
    return SharingPoint(**facts | changes)


def cost(**changes: Any) -> SharingCost:
    facts: dict[str, Any] = {
        "role": Role.TARGET,
        "degree": 1,
        "peer_busy": False,
        "sequence_s": SEQUENCE_S,
        "slot_s": SLOT_S,
        "provenance": Provenance.MEASURED,
    }
    return SharingCost(**facts | changes)


def alone_s(rows: int, context: int) -> float:
    """A forward of one sequence that no line describes."""
    return 5e-3 + 2e-4 * rows + 1e-6 * context + 1e-5 * rows * math.sqrt(rows)


def measured(
    sequence_s: float = SEQUENCE_S, slot_s: float = SLOT_S, contexts: tuple[int, ...] = (16, 256), **changes: Any
) -> list[SharingPoint]:
    return [
        point(
            sequences,
            rows,
            context,
            alone_s(rows, context) + (sequences - 1) * (sequence_s + slot_s * context),
            **changes,
        )
        for context in contexts
        for rows in (2, 4, 8, 16, 32, 64)
        for sequences in (1, 2, 4, 8)
        if not rows % sequences
    ]


def test_a_fit_recovers_the_costs_that_its_points_were_made_with() -> None:
    (found,) = fit_costs(measured())
    assert (found.sequence_s, found.slot_s) == pytest.approx((SEQUENCE_S, SLOT_S))
    assert found.largest_error == pytest.approx(0, abs=1e-9)
    assert (found.table, found.provenance) == (cost().table, Provenance.MEASURED)


@pytest.mark.parametrize(
    ("made", "expected"), [((-1e-4, 2e-6), (0.0, pytest.approx(1.6e-6, rel=0.3))), ((3e-4, -4e-7), (3e-4, 0.0))]
)
def test_no_part_of_a_cost_is_negative(made: tuple[float, float], expected: tuple[float, Any]) -> None:
    (found,) = fit_costs(measured(*made))
    assert found.slot_s == expected[1]
    assert found.sequence_s == pytest.approx(expected[0], rel=0.4)
    assert found.median_error is not None
    assert found.median_error > 0


def test_steps_that_were_slowed_down_change_little() -> None:
    disturbed = [
        each.model_copy(update={"median_s": 1.6 * each.median_s}) if each.rows == 16 else each for each in measured()
    ]
    (found,) = fit_costs(disturbed)
    assert found.seconds(256) == pytest.approx(SEQUENCE_S + 256 * SLOT_S, rel=0.1)
    disturbed[-1] = disturbed[-1].model_copy(update={"median_s": 2 * disturbed[-1].median_s})
    (found,) = fit_costs(disturbed)
    assert found.seconds(256) == pytest.approx(SEQUENCE_S + 256 * SLOT_S, rel=0.1)
    assert found.largest_error == pytest.approx(0.5, rel=0.1)


def test_at_one_context_all_of_the_cost_is_the_sequences_own() -> None:
    (found,) = fit_costs(measured(contexts=(100,)))
    assert (found.sequence_s, found.slot_s) == pytest.approx((SEQUENCE_S + 100 * SLOT_S, 0.0))


def test_each_table_has_a_cost_and_one_without_a_step_of_one_sequence_has_none() -> None:
    points = [*measured(), *measured(1e-3, 0.0, peer_busy=True), point(2, 4, 16, 1.0, degree=2)]
    idle, busy = fit_costs(points)
    assert (idle.peer_busy, busy.peer_busy) == (False, True)
    assert busy.sequence_s == pytest.approx(1e-3)


def test_lookup_takes_the_other_state_of_the_peer_for_want_of_one_and_says_so() -> None:
    machine = constant_profile(expand_s=0.001, verify_s=0.01)
    known = machine.model_copy(update={"sharing": Sharing(costs=(cost(),))}).latencies
    each_s = SEQUENCE_S + 100 * SLOT_S

    def seconds(role: Role = Role.TARGET, *, degree: int = 1, peer_busy: bool = False) -> tuple[float, Provenance]:
        key = StepKey(role, Phase.VERIFY, degree, rows=2, context=100, sequences=2, peer_busy=peer_busy)
        return known.further_sequences(key)

    assert seconds() == (each_s, Provenance.MEASURED)
    assert seconds(peer_busy=True) == (each_s, Provenance.ASSUMED)
    assert seconds(degree=2) == seconds(Role.DRAFT) == (0.0, Provenance.ASSUMED)
    assert known.changed(lambda _, grid: grid).sharing == known.sharing


def test_older_files_have_no_such_field_and_are_written_as_they_were() -> None:
    path = ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores/profile.json"
    old = Profile.load(path)
    assert old.sharing is None
    assert old.to_bytes() == path.read_bytes()


def test_a_profile_keeps_points_and_costs(tmp_path: Path) -> None:
    points = measured()
    sharing = Sharing(points=tuple(points), costs=fit_costs(points))
    made = constant_profile(expand_s=0.001, verify_s=0.01).model_copy(update={"sharing": sharing})
    made.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == made
    assert made.retimed({}).sharing == sharing


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_s": -1e-3}, "sharing.costs[0].sequence_s is -0.001; input should be greater than or equal to 0"),
        ({"degree": 3, "ranks": 2}, "ranks is 2; expected a divisor of degree 3"),
        ({"slot_s": None}, "sharing.costs[0].slot_s is None"),
    ],
)
def test_a_wrong_cost_is_one_sentence(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    made = constant_profile(expand_s=0.001, verify_s=0.01)
    path = tmp_path / "profile.json"
    made.model_copy(update={"sharing": Sharing(costs=(cost(),))}).save(path)
    content = json.loads(path.read_text())
    content["sharing"]["costs"][0] |= changes
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"profile\.json: ") as caught:
        Profile.load(path)
    assert message in str(caught.value)


def test_a_table_has_one_cost_and_rows_are_shared_equally() -> None:
    with pytest.raises(ValueError, match=r"costs holds 2 entries of \(target, 1, 1, False\); expected one each"):
        Sharing(costs=(cost(), cost(slot_s=0.0)))
    with pytest.raises(ValueError, match="rows is 3; expected a multiple of sequences, 2"):
        point(2, 3, 16, 1.0)
