import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.artifacts.distributions import LEAST_RATE, MOST_RATE, MOST_TOKENS, Arrivals, Distribution, Lengths

rates = st.floats(LEAST_RATE, MOST_RATE)
token_counts = st.integers(1, MOST_TOKENS)
arrivals = st.one_of(
    st.builds(Arrivals, process=st.sampled_from(["poisson", "constant"]), rate=rates),
    st.builds(Arrivals, process=st.just("gamma"), rate=rates, shape=st.floats(1e-3, 1e6)),
    st.builds(Arrivals, process=st.just("closed"), num_clients=st.integers(1, 1000)),
)
lengths = st.one_of(
    st.builds(Lengths, distribution=st.just("fixed"), tokens=token_counts),
    st.tuples(token_counts, token_counts).map(
        lambda bounds: Lengths(distribution=Distribution.UNIFORM, least=min(bounds), most=max(bounds))
    ),
    st.builds(Lengths, distribution=st.just("lognormal"), mean=st.floats(1, MOST_TOKENS), cv=st.floats(1e-6, 100)),
)


@given(arrivals)
def test_arrivals_are_read_as_they_are_written(made: Arrivals) -> None:
    assert Arrivals.parse(str(made), field="arrivals") == made


@given(lengths)
def test_lengths_are_read_as_they_are_written(made: Lengths) -> None:
    assert Lengths.parse(str(made), field="prompt_tokens") == made


def test_whole_numbers_are_written_without_a_fraction() -> None:
    assert str(Arrivals.parse("gamma:2.0:0.50", field="arrivals")) == "gamma:2:0.5"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("uniform:2", "; expected poisson:RATE, gamma:RATE:SHAPE, constant:RATE or closed:CLIENTS"),
        ("poisson", "; expected poisson:RATE"),
        ("poisson:1:2", "; expected poisson:RATE"),
        ("", "; expected poisson:RATE"),
        ("replay", "; expected poisson:RATE"),
        ("poisson:0", ": rate is '0'; input should be greater than or equal to 0.0001"),
        ("poisson:-2", ": rate is '-2'; input should be greater than"),
        ("poisson:nan", ": rate is 'nan'; input should be a finite number"),
        ("poisson:fast", ": rate is 'fast'; input should be a valid number"),
        ("gamma:2:0", ": shape is '0'; input should be greater than"),
        ("closed:0", ": num_clients is '0'; input should be greater than or equal to 1"),
        ("closed:1.5", ": num_clients is '1.5'; input should be a valid integer"),
    ],
)
def test_arrivals_that_cannot_be_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^arrivals is") as caught:
        Arrivals.parse(text, field="arrivals")
    assert str(caught.value).startswith(f"arrivals is {text!r}{complaint}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("normal:2:1", "; expected fixed:TOKENS, uniform:LEAST:MOST or lognormal:MEAN:CV"),
        ("prompts", "; expected fixed:TOKENS"),
        ("fixed:0", ": tokens is '0'; input should be greater than or equal to 1"),
        ("uniform:5:4", ": least is 5, above most, 4; expected ascending bounds"),
        ("lognormal:200:0", ": cv is '0'; input should be greater than 0"),
    ],
)
def test_lengths_that_cannot_be_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^output_tokens is") as caught:
        Lengths.parse(text, field="output_tokens")
    assert str(caught.value).startswith(f"output_tokens is {text!r}{complaint}")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"process": "gamma", "rate": 2.0}, "arrivals: shape is missing; gamma takes rate and shape"),
        ({"process": "poisson", "rate": 2.0, "shape": 1.0}, "arrivals: shape is 1.0; poisson takes rate"),
        ({"process": "replay", "rate": 2.0}, "arrivals: rate is 2.0; replay takes no parameters"),
    ],
)
def test_every_process_has_its_parameters_and_no_other(fields: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=r"^arrivals: ") as caught:
        Arrivals.checked(fields, source="arrivals")
    assert str(caught.value) == complaint
