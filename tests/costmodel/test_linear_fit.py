import pytest

from swiftspec.costmodel.linear_fit import LinearFit, Observation


def observation(a: float, b: float, *, fixed_s: float = 0.0) -> Observation:
    return Observation(name=f"{a} {b}", amounts={"a": a, "b": b}, seconds=2 * a + 3 * b + fixed_s, fixed_s=fixed_s)


def test_exact_costs_are_found() -> None:
    observations = [observation(1, 0), observation(1, 4, fixed_s=5.0), observation(9, 2)]
    fit = LinearFit.to(observations)
    assert fit.coefficients == pytest.approx({"a": 2.0, "b": 3.0})
    assert fit.seconds({"a": 1.0, "b": 1.0}, fixed_s=1.0) == pytest.approx(6.0)
    assert [fit.error(item) for item in observations] == pytest.approx([0.0, 0.0, 0.0])


def test_costs_are_never_negative() -> None:
    falling = [Observation(name=str(n), amounts={"floor": 1.0, "n": float(n)}, seconds=10.0 - n) for n in (1, 2, 3)]
    assert LinearFit.to(falling).coefficients["n"] == 0


def test_errors_count_relative_to_what_was_observed() -> None:
    fit = LinearFit.to([Observation(name=str(s), amounts={"a": 1.0}, seconds=s) for s in (1.0, 100.0)])
    assert fit.coefficients["a"] < 2.0
