from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.models.tokenizer import TextStream, Tokenizer, surely_over
from tests.cli.tokenizer_files import END_ID, write_byte_tokenizer

pytestmark = pytest.mark.extra("engine")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_byte_tokenizer(tmp_path_factory.mktemp("bytes")))


def test_text_survives_encoding_and_decoding(tokenizer: Tokenizer) -> None:
    text = 'def f(x):\n    return "Größe \U0001f680"\n'
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text.encode())
    assert tokenizer.decode(tokens) == text


def test_special_tokens_are_left_out_of_the_text(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode((*tokenizer.encode("a"), END_ID)) == "a"


def test_stream_holds_back_a_character_until_its_last_byte(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    tokens = tokenizer.encode("a\U0001f680b")
    assert [stream.push([token]) for token in tokens] == ["a", "", "", "", "\U0001f680", "b"]
    assert stream.flush() == ""


def test_flush_gives_out_what_is_no_whole_character(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    assert stream.push(tokenizer.encode("\U0001f680")[:2]) == ""
    assert stream.flush() == tokenizer.decode(tokenizer.encode("\U0001f680")[:2])
    assert stream.flush() == ""


@given(st.data())
def test_stream_adds_up_to_the_decoded_whole(tokenizer: Tokenizer, data: st.DataObject) -> None:
    tokens = data.draw(st.one_of(st.text().map(tokenizer.encode), st.lists(st.integers(0, 256)).map(tuple)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)))))
    stream = TextStream(tokenizer)
    pieces = [stream.push(tokens[start:end]) for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    assert "".join([*pieces, stream.flush()]) == tokenizer.decode(tokens)


def test_missing_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": "1.0"}', b"\xff\xfe"])
def test_corrupt_tokenizer_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer(tmp_path)


def test_a_text_that_is_short_enough_is_encoded_whole(tokenizer: Tokenizer) -> None:
    text = "abc " * 500
    assert tokenizer.encode(text, most=2000) == tokenizer.encode(text)
    assert len(tokenizer.encode(text, most=1999)) == 2000


@pytest.mark.parametrize("unit", ["x", "\U0001f680", "\n"])
def test_of_a_text_that_is_far_too_long_only_the_beginning_is_encoded(tokenizer: Tokenizer, unit: str) -> None:
    tokens = tokenizer.encode(unit * 1_000_000, most=100)
    assert surely_over(100) < len(tokens) < 10_000


def test_long_tokens_are_told_from_many_tokens(tmp_path: Path) -> None:
    """A thousand characters are ten tokens here: the beginning of the text proves nothing, and more of it is read."""
    merges = [("x" * length, "x" * length) for length in (1, 2, 4, 8, 16, 32, 64)]
    tokenizer = Tokenizer(write_byte_tokenizer(tmp_path, merges=merges))
    text = "x" * 128 * 150
    assert tokenizer.encode(text, most=150) == tokenizer.encode(text)
    assert len(tokenizer.encode(text)) == 150


def test_special_tokens_are_not_kept_for_those_that_follow(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer)
    assert [stream.push((END_ID,) * 5) for _ in range(3)] == ["", "", ""]
    assert len(stream._tokens) == 0
    tokens = tokenizer.encode("a b", special_tokens=False)
    assert stream.push((END_ID, *tokens, END_ID)) + stream.flush() == "a b"
