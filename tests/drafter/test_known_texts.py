"""Rows of a batch are known by their texts, wherever they have moved."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.drafter.known_texts import KnownTexts, Row


class CountedTokens:
    """A text that counts how many of its tokens are looked at."""

    def __init__(self, length: int) -> None:
        self.tokens = list(range(length))
        self.looked_at = 0

    def __getitem__(self, index: int, /) -> int:
        self.looked_at += 1
        return self.tokens[index]


def row(text: list[int], num_sampled: int = 0) -> Row:
    return Row(text, len(text), text[len(text) - num_sampled :])


def after(known: KnownTexts[str], *rows: Row) -> tuple[list[str | None], list[str]]:
    found, gone = known.step(rows)
    return found, sorted(gone)


def test_rows_that_moved_and_grew_are_known_and_the_others_are_gone() -> None:
    known: KnownTexts[str] = KnownTexts()
    for name, text in (("a", [1, 2, 3]), ("b", [1, 2, 4]), ("c", [9])):
        known.keep(row(text), name)
    assert after(known, row([9, 5, 6], 2), row([1, 2, 3, 7], 1), row([8, 8])) == (["c", "a", None], ["b"])


def test_a_row_whose_prompt_is_still_read_is_known() -> None:
    known: KnownTexts[str] = KnownTexts()
    known.keep(row([4, 5]), "a")
    assert after(known, row([4, 5])) == (["a"], [])


def test_two_requests_with_one_text_are_two() -> None:
    known: KnownTexts[str] = KnownTexts()
    known.keep(row([1, 2]), "a")
    known.keep(row([1, 2]), "b")
    found, gone = after(known, row([1, 2, 3], 1), row([1, 2, 3], 1), row([1, 2, 3], 1))
    assert sorted(filter(None, found)) == ["a", "b"]
    assert found.count(None) == 1
    assert not gone


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=8), st.randoms())
@settings(max_examples=200)
def test_every_request_is_found_again_in_any_order(texts: list[list[int]], random: "np.random.RandomState") -> None:
    known: KnownTexts[int] = KnownTexts()
    for number, text in enumerate(texts):
        known.keep(row(text), number)
    order = list(range(len(texts)))
    random.shuffle(order)
    found, gone = known.step([row([*texts[number], 7], 1) for number in order])
    assert not gone
    assert sorted(number for number in found if number is not None) == sorted(order)
    for one, asked in zip(found, order, strict=True):
        assert one is not None
        # Texts that agree in this may stand for each other.
        assert (len(texts[one]), texts[one][-16:]) == (len(texts[asked]), texts[asked][-16:])


def test_a_text_of_any_length_is_looked_up_by_as_many_tokens() -> None:
    looked_at = []
    for length in (100, 100_000):
        known: KnownTexts[str] = KnownTexts()
        tokens = CountedTokens(length)
        known.keep(Row(tokens, length - 1, ()), "a")
        tokens.looked_at = 0
        assert known.step([Row(tokens, length, [length - 1])]) == (["a"], [])
        looked_at.append(tokens.looked_at)
    assert looked_at[1] <= looked_at[0] + 10
