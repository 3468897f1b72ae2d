import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.artifacts.profile import Collective, HostPoint, Profile, StepPoint
from swiftspec.files.document import ModelRef, Origin
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Latency, Part, Provenance, weakest
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import PREFILL_CHUNK
from swiftspec.timing.timeline import Phase

ORIGIN = Origin(command="swiftspec profile", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="none")
MODEL = ModelRef(model="demo/target", dtype="float32")
# Quantiles of a step are these shares of its largest.
SHAPE = np.linspace(0.5, 1.0, NUM_QUANTILES)


def quantiles(latency_s: float) -> tuple[float, ...]:
    return tuple((SHAPE * latency_s).tolist())


def step(rows: int, context: int, latency_s: float, **changes: Any) -> StepPoint:
    facts: dict[str, Any] = {
        "role": Role.TARGET,
        "phase": Phase.VERIFY,
        "degree": 1,
        "peer_busy": False,
        "rows": rows,
        "context": context,
        "quantiles_s": quantiles(latency_s),
        "num_samples": 9,
        "provenance": Provenance.MEASURED,
    }
    return StepPoint(**facts | changes)


def host(phase: Phase, rows: int, latency_s: float, provenance: Provenance = Provenance.MEASURED) -> HostPoint:
    return HostPoint(phase=phase, rows=rows, quantiles_s=quantiles(latency_s), num_samples=9, provenance=provenance)


def profile(steps: Sequence[StepPoint], host: Sequence[HostPoint] = (), *, device: str = "none") -> Profile:
    return Profile(
        origin=ORIGIN, device=device, num_devices=2, target=MODEL, draft=MODEL, steps=tuple(steps), host=tuple(host)
    )


GRID = profile([step(1, 0, 2.0), step(1, 100, 4.0), step(5, 0, 10.0), step(5, 100, 20.0)])


def at(table: Profile, rows: int, context: int, *, degree: int = 1, peer_busy: bool = False) -> Latency:
    return table.step(StepKey(Role.TARGET, Phase.VERIFY, degree, rows, context, peer_busy=peer_busy))


@pytest.mark.parametrize(("rows", "context", "latency_s"), [(1, 0, 2.0), (1, 100, 4.0), (5, 0, 10.0), (5, 100, 20.0)])
def test_on_the_grid_a_latency_is_the_measured_one(rows: int, context: int, latency_s: float) -> None:
    assert at(GRID, rows, context) == Latency(quantiles(latency_s), Provenance.MEASURED)


@pytest.mark.parametrize(
    ("rows", "context", "latency_s"),
    [
        (3, 0, 6.0),
        (1, 50, 3.0),
        (3, 50, 9.0),
        (2, 25, 5.0),  # a quarter of the way along both: 2.5 + (12.5 - 2.5) / 4
        (1, 1000, 4.0),  # flat beyond the last context
        (5, 1000, 20.0),
        (7, 0, 14.0),  # linear beyond the last row
        (9, 100, 36.0),
    ],
)
def test_off_the_grid_a_latency_is_interpolated(rows: int, context: int, latency_s: float) -> None:
    latency = at(GRID, rows, context)
    assert latency.quantiles_s == pytest.approx(quantiles(latency_s))
    assert latency.provenance is Provenance.INTERPOLATED


def test_below_the_grid_a_latency_is_the_first_one() -> None:
    table = profile([step(4, 64, 3.0), step(8, 64, 5.0)])
    assert at(table, 1, 0) == Latency(quantiles(3.0), Provenance.INTERPOLATED)


def test_beyond_the_last_row_a_latency_never_falls() -> None:
    noisy = profile([step(4, 0, 5.0), step(8, 0, 4.0)])
    assert at(noisy, 16, 0).quantiles_s == pytest.approx(quantiles(4.0))


def test_single_point_serves_every_row_and_context() -> None:
    assert at(profile([step(4, 64, 3.0)]), 9, 999).quantiles_s == quantiles(3.0)


@given(rows=st.integers(1, 40), context=st.integers(0, 400))
def test_quantiles_ascend_everywhere(rows: int, context: int) -> None:
    # The spreads differ, so that the last slope alone would let quantiles cross.
    wide = tuple(np.linspace(1.0, 9.0, NUM_QUANTILES).tolist())
    table = profile([step(1, 0, 1.0, quantiles_s=wide), step(4, 0, 10.0), step(4, 100, 11.0)])
    found = at(table, rows, context).quantiles_s
    assert list(found) == sorted(found)
    assert min(found) > 0


def test_busy_peer_has_a_table_of_its_own() -> None:
    table = profile([step(1, 0, 2.0), step(1, 0, 3.0, peer_busy=True)])
    assert at(table, 1, 0).quantiles_s == quantiles(2.0)
    assert at(table, 1, 0, peer_busy=True) == Latency(quantiles(3.0), Provenance.MEASURED)


def test_unmeasured_peer_state_is_assumed_to_be_the_other() -> None:
    assert at(GRID, 1, 0, peer_busy=True) == Latency(quantiles(2.0), Provenance.ASSUMED)
    busy = profile([step(1, 0, 3.0, peer_busy=True)])
    assert at(busy, 1, 0) == Latency(quantiles(3.0), Provenance.ASSUMED)


def test_roles_have_their_own_steps() -> None:
    prefill = {"phase": Phase.PREFILL}
    table = profile(
        [
            step(8, 0, 9.0, **prefill),
            step(8, 0, 3.0, **prefill, role=Role.DRAFT),
            step(1, 0, 1.0, phase=Phase.EXPAND, role=Role.DRAFT),
        ]
    )
    prompt = StepKey(Role.TARGET, Phase.PREFILL, degree=1, rows=8, context=0)
    assert table.step(prompt).quantiles_s == quantiles(9.0)
    assert table.step(prompt._replace(role=Role.DRAFT)).quantiles_s == quantiles(3.0)
    assert table.step(prompt._replace(role=Role.DRAFT, phase=Phase.EXPAND, rows=1)).quantiles_s == quantiles(1.0)


def test_unmeasured_degree_is_refused_and_the_measured_ones_are_named() -> None:
    table = profile([step(1, 0, 2.0), step(1, 0, 1.5, degree=2)])
    assert table.latencies.degrees(Phase.VERIFY, role=Role.TARGET) == [1, 2]
    assert table.latencies.degrees(Phase.EXPAND, role=Role.DRAFT) == []
    with pytest.raises(ValueError, match=r"degree is 3, but the target's verify steps were measured at \[1, 2\]"):
        at(table, 1, 0, degree=3)
    with pytest.raises(ValueError, match="the draft's expand steps were measured at none"):
        table.step(StepKey(Role.DRAFT, Phase.EXPAND, degree=1, rows=1, context=0))


def test_sum_is_as_weak_as_its_weakest_part() -> None:
    ranking = list(Provenance)
    assert [provenance.value for provenance in ranking] == [
        *["measured", "given", "published", "interpolated", "composed", "roofline", "assumed"]
    ]
    for index, provenance in enumerate(ranking):
        assert weakest(ranking[: index + 1]) is provenance
        assert weakest([provenance, Provenance.MEASURED]) is provenance


def test_a_gpus_forward_takes_as_long_as_the_graph_that_it_fits_into() -> None:
    prefills = [step(rows, 0, seconds, phase=Phase.PREFILL) for rows, seconds in ((1, 2.0), (5, 10.0))]
    gpu = profile([*GRID.steps, *prefills], device="cuda")
    assert at(gpu, 2, 100) == at(gpu, 5, 100) == at(GRID, 5, 100)
    assert at(gpu, 2, 50).quantiles_s == at(GRID, 5, 50).quantiles_s  # contexts are interpolated
    assert at(gpu, 1, 0) == at(GRID, 1, 0)
    assert at(gpu, 6, 0) == at(GRID, 6, 0)  # beyond what was measured there is a guess
    prefill = gpu.step(StepKey(Role.TARGET, Phase.PREFILL, degree=1, rows=3, context=0))
    assert prefill.quantiles_s == pytest.approx(quantiles(6.0))


def test_a_prompt_on_a_cpu_takes_as_long_as_the_rows_that_its_last_chunk_is_padded_to() -> None:
    prefills = [step(rows, 0, seconds, phase=Phase.PREFILL) for rows, seconds in ((1, 1.0), (201, 201.0))]

    def mean_s(device: str, rows: int) -> float:
        held = profile([*GRID.steps, *prefills], device=device)
        return held.step(StepKey(Role.TARGET, Phase.PREFILL, degree=1, rows=rows, context=0)).mean_s

    assert [mean_s("cpu", rows) / mean_s("cpu", 1) for rows in (20, 33, 48, 129, 170)] == pytest.approx(
        [20, 48, 48, 129, 176]
    )
    assert mean_s("cpu", 1000) == pytest.approx(mean_s("cpu", 7 * PREFILL_CHUNK + 112))
    assert mean_s("h100-sxm", 33) == pytest.approx(33 * mean_s("h100-sxm", 1))
    kernels = profile([*GRID.steps, *prefills], device="cpu").model_copy(update={"padded_prompts": (Role.DRAFT,)})
    unpadded = kernels.step(StepKey(Role.TARGET, Phase.PREFILL, degree=1, rows=33, context=0))
    assert unpadded.mean_s == pytest.approx(33 * mean_s("cpu", 1))


def test_weak_points_weaken_what_is_interpolated_but_not_what_was_measured() -> None:
    table = profile([step(1, 0, 2.0), step(5, 0, 10.0, provenance=Provenance.ROOFLINE)])
    assert at(table, 1, 0).provenance is Provenance.MEASURED
    assert at(table, 5, 0).provenance is Provenance.ROOFLINE
    assert at(table, 3, 0).provenance is Provenance.ROOFLINE


def test_host_latency_is_linear_in_rows() -> None:
    table = profile([step(1, 0, 2.0)], [host(Phase.COMPACT, 9, 5.0), host(Phase.COMPACT, 1, 1.0)])
    assert table.latencies.host_latency(Phase.COMPACT) == Latency(quantiles(1.0), Provenance.MEASURED)
    between = table.latencies.host_latency(Phase.COMPACT, rows=5)
    assert between is not None
    assert between.quantiles_s == pytest.approx(quantiles(3.0))
    assert between.provenance is Provenance.INTERPOLATED
    beyond = table.latencies.host_latency(Phase.COMPACT, rows=17)
    assert beyond is not None
    assert beyond.quantiles_s == pytest.approx(quantiles(9.0))
    assert table.latencies.host_latency(Phase.SEND) is None


def composed(rows: int, gemm_s: float, norm_s: float) -> StepPoint:
    parts = (
        Part(name="gemm", seconds=gemm_s, provenance=Provenance.INTERPOLATED),
        Part(name="norm", seconds=norm_s, provenance=Provenance.ROOFLINE),
    )
    quantiles_s = (gemm_s + norm_s,) * NUM_QUANTILES
    return step(rows, 0, 1.0, quantiles_s=quantiles_s, parts=parts, provenance=Provenance.ROOFLINE)


def test_composed_step_says_which_share_rests_on_what_between_its_points_too() -> None:
    table = profile([composed(1, 3.0, 1.0), composed(5, 5.0, 5.0)])
    latency = at(table, 3, 0)
    assert latency.mean_s == pytest.approx(7.0)
    assert {part.name: part.seconds for part in latency.parts} == pytest.approx({"gemm": 4.0, "norm": 3.0})
    assert latency.shares == pytest.approx({Provenance.INTERPOLATED: 4 / 7, Provenance.ROOFLINE: 3 / 7})
    assert latency.provenance is Provenance.ROOFLINE


def test_measured_step_rests_on_one_provenance() -> None:
    assert at(GRID, 1, 0).shares == {Provenance.MEASURED: 1.0}


def test_parts_that_do_not_add_up_are_refused() -> None:
    part = Part(name="gemm", seconds=1.0, provenance=Provenance.MEASURED)
    with pytest.raises(ValueError, match=r"parts add up to 1.0 s; expected the mean of the quantiles, 2.0 s"):
        step(1, 0, 1.0, quantiles_s=(2.0,) * NUM_QUANTILES, parts=(part,))


def test_retimed_parts_still_add_up() -> None:
    table = profile([composed(1, 3.0, 1.0)])
    again = table.retimed({table.steps[0].table: 1.5})
    assert at(again, 1, 0).mean_s == pytest.approx(6.0)
    assert [part.seconds for part in again.steps[0].parts] == pytest.approx([4.5, 1.5])


def test_peers_that_do_not_interfere_need_no_table_of_their_own() -> None:
    apart = profile(GRID.steps).model_copy(update={"peers_interfere": False})
    assert at(apart, 1, 0, peer_busy=True) == Latency(quantiles(2.0), Provenance.MEASURED)


def test_cold_steps_are_the_warm_ones_where_no_difference_was_measured() -> None:
    draft = {"role": Role.DRAFT, "phase": Phase.EXPAND}
    table = profile([step(1, 0, 2.0, **draft), step(1, 0, 3.0, **draft, cold=True), step(1, 0, 9.0)])

    def longest_s(role: Role, phase: Phase, *, cold: bool) -> float:
        return table.step(StepKey(role, phase, degree=1, rows=1, context=0, cold=cold)).quantiles_s[-1]

    assert [longest_s(Role.DRAFT, Phase.EXPAND, cold=cold) for cold in (False, True)] == [2.0, 3.0]
    assert longest_s(Role.TARGET, Phase.VERIFY, cold=True) == 9.0


def test_collective_must_be_among_those_it_was_chosen_from() -> None:
    with pytest.raises(ValueError, match="implementation is 'nccl'; expected one of one_shot, fused"):
        Collective(role=Role.TARGET, degree=2, implementation="nccl", seconds={"one_shot": 1e-6, "fused": 2e-6})


def test_latency_of_samples_keeps_their_distribution() -> None:
    samples = np.random.default_rng(0).gamma(4.0, 1e-3, 20_000)
    latency = Latency.of_samples(samples.tolist(), Provenance.MEASURED)
    assert len(latency.quantiles_s) == NUM_QUANTILES
    assert latency.mean_s == pytest.approx(samples.mean(), rel=0.02)
    assert latency.median_s == pytest.approx(np.median(samples), rel=0.02)
    assert latency.quantiles_s[0] == pytest.approx(np.quantile(samples, 0.5 / NUM_QUANTILES))


def test_point_gives_its_latency() -> None:
    assert step(1, 0, 2.0).latency == Latency(quantiles(2.0), Provenance.MEASURED)


def test_saved_profile_loads_as_it_was(tmp_path: Path) -> None:
    table = profile(GRID.steps, [host(Phase.SEND, 1, 0.25)])
    table.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == table


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("quantiles_s", [float("nan")] * NUM_QUANTILES, r"steps\[0\].quantiles_s\[0\] is nan; input should be"),
        ("quantiles_s", [0.0] * NUM_QUANTILES, r"steps\[0\].quantiles_s\[0\] is 0.0; input should be greater than 0"),
        ("quantiles_s", quantiles(1.0)[::-1], r"steps\[0\].quantiles_s is .*; expected seconds in ascending order"),
        ("quantiles_s", [1.0], r"steps\[0\].quantiles_s is \[1.0\]; tuple should have at least 20 items"),
        ("rows", 0, r"steps\[0\].rows is 0; input should be greater than or equal to 1"),
        ("context", -1, r"steps\[0\].context is -1; input should be greater than or equal to 0"),
        ("phase", "send", r"steps\[0\].phase is 'send'; expected a forward: exit"),
        ("provenance", "guessed", r"steps\[0\].provenance is 'guessed'; input should be"),
        ("provenance", None, r"steps\[0\].provenance is None"),
    ],
)
def test_malformed_points_are_refused(field: str, value: object, message: str) -> None:
    content = json.loads(GRID.to_json())
    content["steps"][0][field] = value
    with pytest.raises(ValueError, match=f"^p.json: {message}"):
        Profile.parse(content, source="p.json")


def test_profile_without_steps_is_refused() -> None:
    content = json.loads(GRID.to_json()) | {"steps": []}
    with pytest.raises(ValueError, match=r"p.json: steps is \[\]; tuple should have at least 1 item"):
        Profile.parse(content, source="p.json")


def test_step_measured_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"steps holds 2 entries of \(target, verify, 1, False, False, 1, 4, 64\)"):
        profile([step(4, 64, 3.0), step(4, 64, 3.5), step(4, 128, 3.0)])
    with pytest.raises(ValueError, match=r"host holds 2 entries of \(send, 1\)"):
        profile([step(4, 64, 3.0)], [host(Phase.SEND, 1, 1.0), host(Phase.SEND, 1, 2.0)])


def test_retimed_profile_has_longer_steps_and_nothing_else() -> None:
    idle, busy, prefill = step(1, 0, 2.0), step(1, 0, 3.0, peer_busy=True), step(8, 0, 5.0, phase=Phase.PREFILL)
    subject = profile([idle, busy, prefill], [host(Phase.SEND, 1, 0.1)])
    assert at(subject, 1, 0).mean_s == pytest.approx(1.5)  # looked up before, so that nothing stale is kept
    slower = subject.retimed({busy.table: 2.0})
    # What was not timed has changed as its counterpart has, or not at all.
    assert [one.quantiles_s[-1] for one in slower.steps] == pytest.approx([4.0, 6.0, 5.0])
    assert at(slower, 1, 0).mean_s == pytest.approx(3.0)
    assert slower.host == subject.host
    assert subject.retimed({}).steps == subject.steps


def test_a_profile_from_before_there_were_ranks_is_one_of_undivided_groups() -> None:
    content = json.loads(GRID.to_json())
    del content["checks"]
    for point in content["steps"]:
        del point["ranks"]
    assert Profile.parse(content, source="p.json") == GRID


def test_ranks_divide_the_devices_equally() -> None:
    with pytest.raises(ValueError, match="ranks is 2; expected a divisor of degree 3"):
        step(1, 0, 1.0, degree=3, ranks=2)


def test_a_changed_copy_has_latencies_of_its_own() -> None:
    made = profile([step(1, 0, 0.010)], [host(Phase.VERIFY, 1, 0.001)])
    assert made.latencies.host_latency(Phase.VERIFY) is not None
    assert made.model_copy(update={"host": ()}).latencies.host_latency(Phase.VERIFY) is None
