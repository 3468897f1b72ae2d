from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.process.placement import Placement
from swiftspec.files.document import ModelRef, Origin
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.profiler.drift import DriftProbe
from swiftspec.profiler.grids import DRAFT_ROWS
from swiftspec.profiler.steps import step_points
from swiftspec.timing.step_key import RowFactors, StepTable, factor_at
from swiftspec.timing.timeline import Phase
from tests.engine.pairs import references, write_pair

GROUPS = {Role.TARGET: (0,)}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    target, draft = references(write_pair(tmp_path_factory.mktemp("pair"), architecture="llama"))
    # Room for prompts of 256 tokens: of a number that needs no padding, so that what is timed is what is looked up.
    models = {Role.TARGET: target, Role.DRAFT: draft}
    with Launcher(models, Placement(groups=GROUPS), layout=Layout.COLOCATED, max_context=257) as started:
        yield started


def prompt(length: int) -> tuple[int, ...]:
    return tuple(1 + index % 63 for index in range(length))


def swept(engine: Launcher) -> tuple[DriftProbe, Profile]:
    """A gauge after two sweeps, and the profile that these would make."""
    drift_probe = DriftProbe([(engine, GROUPS, {})], prompt=prompt)
    drift_probe.warm_up()
    drift_probe.sweep()
    drift_probe.sweep()
    timelines = drift_probe._timelines[0]
    reference = ModelRef(model="synthetic", dtype="float32")
    steps = tuple(step_points(timelines, GROUPS, Layout.COLOCATED, ranks={}))
    return drift_probe, Profile(
        origin=Origin.here(), device="cpu", num_devices=1, target=reference, draft=reference, steps=steps, host=()
    )


def every(factors: Mapping[StepTable, RowFactors]) -> list[float]:
    return [factor for found in factors.values() for factor in found.values()]


def test_a_machine_that_is_as_profiled_has_factors_of_one(engine: Launcher) -> None:
    drift_probe, profile = swept(engine)
    factors = drift_probe.factors(profile)
    assert every(factors) == pytest.approx([1.0] * len(every(factors)))
    assert {table.phase for table in factors} == {Phase.PREFILL, Phase.VERIFY, Phase.EXPAND, Phase.FUZZY}


def test_a_machine_that_has_changed_is_found_kind_by_kind(engine: Launcher) -> None:
    drift_probe, profile = swept(engine)
    verify = next(step.table for step in profile.steps if step.phase is Phase.VERIFY)
    factors = drift_probe.factors(profile.retimed({verify: 0.5}))
    assert factor_at(factors.pop(verify)) == pytest.approx(2.0)
    assert every(factors) == pytest.approx([1.0] * len(every(factors)))


def test_slower_memory_is_found_in_single_rows_alone(engine: Launcher) -> None:
    drift_probe, profile = swept(engine)
    verify = next(step.table for step in profile.steps if step.phase is Phase.VERIFY and step.rows == 1)
    changed = profile.retimed({verify: {1: 0.5, 4: 1.0}})
    found = drift_probe.factors(changed)[verify]
    assert [factor_at(found, rows) for rows in (1, 2, 8)] == pytest.approx([2.0, 1.5, 1.0])
    assert factor_at(found) == pytest.approx(1.0)
    again = changed.retimed({verify: found})
    assert [step.latency.mean_s for step in again.steps] == pytest.approx(
        [step.latency.mean_s for step in profile.steps]
    )


def test_cold_forwards_are_compared_with_cold_ones(engine: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that alternates with its target is always cold here: that is no drift where it was so profiled."""
    monkeypatch.setattr("swiftspec.timing.warm_up.COOLING_S", 0.0)
    monkeypatch.setattr("swiftspec.profiler.steps.LEAST_COLD_SAMPLES", 1)
    drift_probe, profile = swept(engine)
    cold = {step.table for step in profile.steps if step.cold}
    assert cold
    warm = [step.model_copy(update={"cold": False}) for step in profile.steps if step.cold]
    known = {(*step.table, step.rows, step.context) for step in profile.steps}
    warm = [step for step in warm if (*step.table, step.rows, step.context) not in known]
    profile = profile.model_copy(update={"steps": (*profile.steps, *warm)})
    factors = drift_probe.factors(profile.retimed(dict.fromkeys(cold, 3.0)))
    assert [factor_at(factors[table]) for table in cold] == pytest.approx([1 / 3] * len(cold))
    # Where cold forwards were not profiled there is nothing to compare them with.
    warm_only = profile.model_copy(update={"steps": tuple(step for step in profile.steps if not step.cold)})
    assert not cold & drift_probe.factors(warm_only).keys()


def test_a_draft_on_cores_of_its_own_is_timed_after_waits_too(tmp_path: Path) -> None:
    target, draft = references(write_pair(tmp_path, architecture="llama"))
    groups = {Role.TARGET: (0,), Role.DRAFT: (0,)}
    models = {Role.TARGET: target, Role.DRAFT: draft}
    with Launcher(models, Placement(groups=groups), layout=Layout.DISAGGREGATED, max_context=256) as started:
        drift_probe = DriftProbe([(started, groups, {})], prompt=prompt)
        drift_probe.sweep()
    overlapped, resumed = drift_probe._timelines[0]
    assert {span.phase for span in overlapped.spans} >= {Phase.VERIFY, Phase.EXPAND}
    expansions = [span for span in resumed.spans if span.phase is Phase.EXPAND]
    assert expansions == list(resumed.spans)
    assert {span.rows for span in expansions} == set(DRAFT_ROWS)


def test_an_engine_without_a_draft_is_left_alone(engine: Launcher) -> None:
    profile = swept(engine)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "layout", Layout.TARGET_ONLY)
        drift_probe = DriftProbe([(engine, GROUPS, {})], prompt=prompt)
        drift_probe.sweep()
        assert drift_probe.factors(profile) == {}
