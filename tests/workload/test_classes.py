from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.artifacts.workload import RequestClass
from swiftspec.workload.generate import assign_classes, shares_of


def classes(*shares: float | None) -> list[RequestClass]:
    """Classes a, b, c, ... with these shares."""
    return [RequestClass(name=name, share=share) for name, share in zip("abcdefgh", shares, strict=False)]


def assigned(known: Sequence[RequestClass], num_requests: int, seed: int = 0) -> list[str]:
    return assign_classes(known, num_requests, np.random.default_rng(seed))


def test_classes_without_a_share_divide_the_rest() -> None:
    assert shares_of(classes(0.5, None, None)) == (0.5, 0.25, 0.25)
    assert shares_of(classes(None)) == (1.0,)
    assert shares_of(classes(0.7, 0.2, 0.1)) == (0.7, 0.2, 0.1)


@pytest.mark.parametrize(
    ("shares", "complaint"),
    [
        ((0.8, 0.4), "shares of classes add up to 1.2; expected at most 1"),
        ((0.8, 0.4, None), "shares of classes add up to 1.2; expected at most 1"),
        ((0.5, 0.4), "shares of classes add up to 0.9; expected 1, or a class without a share"),
        ((0.5, 0.5, None), "shares of classes add up to 1, which leaves nothing for c"),
        ((), "classes is empty; expected at least one"),
    ],
)
def test_shares_that_do_not_add_up_are_named(shares: Sequence[float | None], complaint: str) -> None:
    with pytest.raises(ValueError, match="class") as caught:
        shares_of(classes(*shares))
    assert str(caught.value) == complaint


def test_a_name_twice_is_named() -> None:
    with pytest.raises(ValueError, match=r"^classes has 'a' 2 times; expected every name once$"):
        shares_of([RequestClass(name="a"), RequestClass(name="a")])


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(1, 400), st.integers(0, 99))
def test_numbers_are_as_near_to_the_shares_as_can_be(weights: list[int], num_requests: int, seed: int) -> None:
    shares = [weight / sum(weights) for weight in weights]
    found = assigned(classes(*shares), num_requests, seed)
    assert len(found) == num_requests
    for name, share in zip("abcdefgh", shares, strict=False):
        assert abs(Counter(found)[name] - share * num_requests) < 1


def test_classes_are_in_random_order() -> None:
    found = assigned(classes(0.5, 0.5), 1000)
    assert found != sorted(found)
    changes = sum(left != right for left, right in pairwise(found))
    assert changes == pytest.approx(500, abs=70)
    assert found == assigned(classes(0.5, 0.5), 1000)
