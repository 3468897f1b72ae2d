from swiftspec.costmodel.constants import fitted_constants


def test_every_constant_says_what_it_was_fitted_on() -> None:
    for constant in fitted_constants():
        assert constant.fitted_on
        assert constant.value > 0
