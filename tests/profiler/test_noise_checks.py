from collections.abc import Sequence

import pytest

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.policies.effects import Role
from swiftspec.profiler.noise_checks import op_complaints, step_complaints
from swiftspec.profiler.op_benchmark import OpRow
from swiftspec.profiler.op_timer import Timing
from swiftspec.timing.latency import Provenance
from swiftspec.timing.timeline import Phase
from tests.builders import machine_profile

STEADY = (1.0,) * 20


def profile(*steps: StepPoint) -> Profile:
    return machine_profile().model_copy(update={"steps": steps})


def verify(
    rows: int, seconds: float, *, context: int = 64, shape: Sequence[float] = STEADY, cold: bool = False
) -> StepPoint:
    return StepPoint(
        role=Role.TARGET,
        phase=Phase.VERIFY,
        degree=2,
        peer_busy=False,
        cold=cold,
        rows=rows,
        context=context,
        quantiles_s=tuple(seconds * factor for factor in shape),
        num_samples=20,
        provenance=Provenance.MEASURED,
    )


def product(rows: int, seconds: float, *, num_bytes: int = 0, spread: float = 0.0) -> OpRow:
    timing = Timing(
        median_s=seconds, low_s=seconds * (1 - spread / 2), high_s=seconds * (1 + spread / 2), num_samples=9
    )
    return OpRow(op="gemm", sizes={"n": 64, "k": 32, "rows": rows}, dtype="bf16", timing=timing, num_bytes=num_bytes)


COPY = OpRow(
    op="copy",
    sizes={"bytes": 500},
    dtype="fp32",
    timing=Timing(median_s=1e-6, low_s=1e-6, high_s=1e-6, num_samples=9),
    num_bytes=1000,
)


def test_nothing_is_said_about_times_that_grow() -> None:
    steps = [verify(rows, 1e-3 * (1 + rows / 100), context=context) for rows in (1, 2, 4, 8) for context in (64, 512)]
    assert step_complaints(profile(*steps)) == []
    assert op_complaints([COPY, product(1, 1e-5), product(8, 1e-5), product(64, 2e-5)]) == []


def test_a_median_that_falls_while_rows_grow_is_named() -> None:
    (complaint,) = step_complaints(profile(verify(8, 1.0e-3), verify(1, 1.2e-3), verify(16, 0.96e-3)))
    assert complaint.sentence == (
        "target verify on 2 devices, context 64: 8 rows in 1 ms, 17 % less than 1 row; "
        "expected no less, give or take 5 %"
    )
    assert complaint.severity == pytest.approx(1 / 6 / 0.05)


def test_contexts_and_shapes_are_not_compared_with_each_other() -> None:
    assert step_complaints(profile(verify(1, 2e-3, context=512), verify(8, 1e-3, context=64))) == []
    other = OpRow(op="gemm", sizes={"n": 32, "k": 32, "rows": 8}, dtype="bf16", timing=product(8, 1e-6).timing)
    assert op_complaints([COPY, product(1, 1e-5), other]) == []


def test_a_spread_above_a_quarter_is_named() -> None:
    scattered = (*(0.8,) * 5, *(1.0,) * 10, *(1.2,) * 5)
    (complaint,) = step_complaints(profile(verify(4, 1e-3, shape=scattered)))
    assert "4 rows in 1 ms, and 40 % of that lies between 20 % and 80 % of the samples" in complaint.sentence
    assert step_complaints(profile(verify(4, 1e-3, shape=(0.5, 0.5, *(1.0,) * 16, 1.5, 1.5)))) == []
    assert len(op_complaints([COPY, product(4, 1e-5, spread=0.26), product(8, 1e-5, spread=0.24)])) == 1


def test_a_cold_forward_may_scatter() -> None:
    assert step_complaints(profile(verify(4, 1e-3, shape=(*(0.5,) * 10, *(2.0,) * 10), cold=True))) == []


def test_a_forward_faster_than_its_weights_can_be_read_is_named() -> None:
    fast = profile(verify(1, 0.9e-3), verify(2, 0.99e-3))
    assert step_complaints(fast) == []
    (first, second) = step_complaints(fast, least_s={Role.TARGET: 2.4e-3})  # 1.2 ms on each of two devices
    assert "1 row in 900 us, but reading the weights alone takes 1.2 ms" in first.sentence
    assert (first.severity, second.severity) == pytest.approx(((1.2 / 0.9 - 1) / 0.1, (1.2 / 0.99 - 1) / 0.1))
    assert step_complaints(fast, least_s={Role.DRAFT: 1.0, Role.TARGET: 1.9e-3}) == []


def test_a_product_faster_than_a_copy_is_named() -> None:
    (complaint,) = op_complaints([COPY, product(1, 1e-6, num_bytes=1050), product(8, 1e-6, num_bytes=1200)])
    assert complaint.sentence.startswith("gemm n=64 k=32 bf16: 8 rows in 1 us, 1 GB/s where a copy or a sum reaches 1;")
    assert complaint.severity == pytest.approx(2)


def test_what_has_no_rows_is_said_without() -> None:
    timing = Timing(median_s=1e-5, low_s=0.5e-5, high_s=1e-5, num_samples=9)
    reduced = OpRow(op="all_reduce", sizes={"bytes": 8192}, dtype="fp32", timing=timing, devices=2)
    launch = OpRow(op="launch", sizes={}, dtype="fp32", timing=timing)
    (complaint,) = op_complaints([COPY, reduced, launch])
    assert complaint.sentence.startswith("all_reduce bytes=8192 fp32 on 2 devices: 10 us, and 50 % of that lies")


def test_groups_of_devices_are_not_compared_with_each_other() -> None:
    quick, slow = (Timing(median_s=s, low_s=s, high_s=s, num_samples=9) for s in (1e-6, 1e-5))
    reduced = [
        OpRow(op="all_reduce", sizes={"bytes": 8192}, dtype="fp32", timing=timing, devices=devices)
        for devices, timing in ((2, slow), (4, quick))
    ]
    assert op_complaints([COPY, *reduced]) == []


def test_the_worst_comes_first() -> None:
    complaints = step_complaints(profile(verify(1, 1.2e-3), verify(2, 1.0e-3), verify(4, 0.5e-3)))
    assert ["4 rows" in complaint.sentence for complaint in complaints] == [True, False]
