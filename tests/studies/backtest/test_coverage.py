import pytest

from swiftspec.costmodel.forward import Host, forward_parts
from swiftspec.costmodel.kernel_latency import Kernels
from swiftspec.costmodel.shipped import kernels_of
from swiftspec.devices import named_device
from swiftspec.models import known_model
from swiftspec.planner.search.decision import PUBLISHED_ACCEPTANCE
from swiftspec.simulator.forward_errors import COMPOSED, ROOFLINE, SPARSE
from swiftspec.studies.backtest import swiftspec_paper
from swiftspec.studies.backtest.coverage import Kind, coverage, known_error, source_of
from swiftspec.studies.backtest.head_acceptance import by_text_rows
from swiftspec.studies.backtest.rows import Row, Section
from tests.studies.backtest.conftest import Found


def row(quantity: str, error: float, source: str) -> Row:
    return Row.unfitted("", quantity, 1.0, 1.0 + error, source)


@pytest.fixture(scope="module")
def shipped(
    acceptance: Found, serving: Section, systems: list[Row], sparse_points: Section, sparse_systems: list[Row]
) -> list[Row]:
    """All that do not take half a minute: the paper's speeds and the larger files of loads are left out."""
    forwards = [*swiftspec_paper._kernels(), *swiftspec_paper._forwards()]
    return [*serving.rows, *acceptance[0], *systems, *forwards, *sparse_points.rows, *sparse_systems, *by_text_rows()]


def test_a_source_is_judged_by_the_errors_of_the_others() -> None:
    rows = [row("forward, ms", 0.01, "good")] * 9 + [row("forward, ms", 0.1, "bad")]
    assert known_error(Kind.FORWARD, rows, but="bad") == pytest.approx(0.01, rel=0.01)
    every, forwards = coverage(rows)
    assert (every.num_inside, forwards.num_inside, forwards.num_rows) == (9, 9, 10)


def test_a_source_with_many_rows_does_not_speak_for_all() -> None:
    few = [row("forward, ms", 0.01, "one"), row("forward, ms", 0.05, "other")]
    many = [*few, *few[:1] * 50]
    assert known_error(Kind.FORWARD, many) == pytest.approx(known_error(Kind.FORWARD, few))


def test_speeds_are_off_by_forwards_and_acceptance_together() -> None:
    known = [row("forward, ms", 0.03, "one"), row("tokens per round", 0.04, "one")]
    for error, inside in ((0.08, 1), (0.09, 0)):  # 1.645 x 5 %
        speeds = coverage([*known, row("tokens/s", error, "other")])[-1]
        assert (speeds.name, speeds.num_inside) == (Kind.SPEED, inside)


@pytest.mark.parametrize("quantity", ["TPOT, ms", "mean E2E, ms", "TTFT p50, ms", "TPOT of a sparse model, ms"])
def test_models_of_loads_are_sources_of_their_own(quantity: str) -> None:
    point = Row.unfitted("llama-3.1-8b fp8, vllm, batch 8", quantity, 1.0, 1.0, "NVIDIA, tables 1.0, point 3")
    assert source_of(point) == "NVIDIA, llama-3.1-8b"


def test_loads_are_judged_by_loads_of_other_models() -> None:
    def load(error: float, model: str) -> Row:
        return Row.unfitted(f"{model} bf16", "TPOT, ms", 1.0, 1.0 + error, "one")

    rows = [row("forward, ms", 0.01, "two"), load(0.1, "a"), load(0.12, "b"), load(0.12, "c"), load(0.5, "d")]
    _, forwards, loads = coverage(rows)
    assert (forwards.num_inside, forwards.num_rows) == (1, 1)
    assert (loads.name, loads.num_inside, loads.num_rows) == (Kind.LOAD, 3, 4)


def test_ninety_percent_intervals_hold_about_nine_in_ten_published_figures(shipped: list[Row]) -> None:
    every, *kinds = coverage(shipped)
    assert every.num_rows > 180
    assert 0.8 <= every.share <= 0.97
    assert {kind.name for kind in kinds} == set(Kind)


def test_the_planner_states_the_errors_that_the_figures_show(shipped: list[Row]) -> None:
    assert known_error(Kind.FORWARD, shipped) == pytest.approx(COMPOSED, rel=0.2)
    assert known_error(Kind.SPARSE_LOAD, shipped) == pytest.approx(SPARSE, rel=0.3)
    assert known_error(Kind.ACCEPTANCE, shipped) == pytest.approx(PUBLISHED_ACCEPTANCE, rel=0.3)


def test_rooflines_are_off_by_what_is_said_where_they_were_not_fitted() -> None:
    def seconds(kernels: Kernels, model: str, degree: int) -> float:
        parts = forward_parts(
            known_model(model).spec,
            kernels=kernels,
            quant="bf16",
            degree=degree,
            rows=8,
            context=512,
            host=Host.of("trtllm"),
        )
        return sum(part.seconds for part in parts)

    rooflines = Kernels(named_device("a100-sxm"))
    ratios = [
        seconds(rooflines, model, degree) / seconds(kernels_of("a100-sxm"), model, degree)
        for model in ("llama-3-70b", "llama-3-8b", "llama-3.2-1b", "qwen2.5-32b")
        for degree in (1, 2, 4, 8)
    ]
    rms = (sum((ratio - 1) ** 2 for ratio in ratios) / len(ratios)) ** 0.5
    assert rms == pytest.approx(ROOFLINE, rel=0.3)
