from swiftspec.costmodel.constants import FITTED


def test_every_constant_says_what_it_was_fitted_on() -> None:
    for constant in FITTED.values():
        assert constant["fitted_on"]
        assert constant["value"] > 0
