"""Stop texts in text that comes in pieces."""

from hypothesis import given
from hypothesis import strategies as st

from swiftspec.server.answer import StopScanner

TEXT = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3)


def given_out(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    scanner = StopScanner(stops)
    text = "".join(map(scanner.push, pieces))
    return text + ("" if scanner.stopped else scanner.flush()), scanner.stopped is not None


@given(pieces=st.lists(TEXT, max_size=6), stops=STOPS)
def test_the_text_before_the_stop_that_is_complete_first_is_given_out(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    text, has_stopped = given_out(pieces, stops)
    assert has_stopped == any(stop in whole for stop in stops)
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)
    if not has_stopped:
        assert text == whole


@given(text=TEXT, stops=STOPS)
def test_characters_one_by_one_give_the_same_beginning(text: str, stops: list[str]) -> None:
    one_by_one, stopped = given_out(list(text), stops)
    at_once, stopped_at_once = given_out([text], stops)
    assert stopped == stopped_at_once
    assert one_by_one.startswith(at_once)


def test_what_may_be_the_beginning_of_a_stop_is_held_back() -> None:
    scanner = StopScanner(["END"])
    assert [scanner.push(piece) for piece in ("text E", "N", "ough EN", "D more")] == ["text ", "", "ENough ", ""]
    assert scanner.stopped == "END"
    assert scanner.push("after") == ""
