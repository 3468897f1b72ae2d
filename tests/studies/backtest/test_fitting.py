import pytest

from swiftspec.acceptance.proxy_pairs import fitted_pairs
from swiftspec.studies.backtest.fitting import fitted_again


def test_stored_fits_are_what_a_new_fit_finds() -> None:
    again = list(fitted_again())
    assert [(pair.target, pair.draft, pair.dataset) for pair in again] == [
        (pair.target, pair.draft, pair.dataset) for pair in fitted_pairs()
    ]
    for stored, found in zip(fitted_pairs(), again, strict=True):
        assert (stored.fitted, stored.to) == (found.fitted, found.to)
        assert stored.acceptance_model.model_dump() == pytest.approx(found.acceptance_model.model_dump(), abs=0.02)
        assert found.residual < 0.01
