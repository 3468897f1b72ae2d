import json
import math
import os
import threading
from pathlib import Path

import pytest

from swiftspec.files.reading import (
    is_unicode,
    parse_foreign_json,
    parse_json,
    read_foreign_json,
    read_input,
    read_lines,
    shown,
)


def test_a_long_number_is_named_by_its_place() -> None:
    document = '{"steps": [{"rows": 1}, {"rows": 1' + "0" * 30 + "}]}"
    with pytest.raises(ValueError, match=r"^steps\[1\]\.rows is '10+.*; expected a number of at most 18 digits$"):
        parse_json(document)


def test_half_a_character_is_named_by_its_place_and_a_whole_one_is_read() -> None:
    with pytest.raises(ValueError, match=r"^names\[1\] is '\\ud83d'; expected Unicode text"):
        parse_json('{"names": ["a", "\\ud83d"]}')
    with pytest.raises(ValueError, match=r"^key of the document is '\\udc00'"):
        parse_json('{"\\uDC00": 1}')
    assert parse_json('"\\ud83d\\ude80"') == "\U0001f680"


def test_half_a_character_that_is_no_escape_is_refused_too() -> None:
    with pytest.raises(ValueError, match=r"^not a JSON document \('utf-8' codec"):
        parse_json(b'"\xed\xa0\xbd"')
    with pytest.raises(ValueError, match=r"^value is '\\ud83d'; expected Unicode text"):
        parse_json('"\ud83d"')


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-be"])
def test_a_document_may_be_in_any_unicode_encoding(encoding: str) -> None:
    assert parse_json('{"name": "\u6771\u4eac"}'.encode(encoding)) == {"name": "\u6771\u4eac"}


@pytest.mark.parametrize("number", ["123456789012345678", "-123456789012345678", "1e300", "0.1"])
def test_numbers_that_are_long_enough_are_read(number: str) -> None:
    assert parse_json(number) == json.loads(number)


@pytest.mark.parametrize(
    "number", ["1000000000000000019884624838656", "-" + "9" * 308, "1e30", "1e999", "-Infinity", "Infinity"]
)
def test_numbers_of_others_are_those_of_python(number: str) -> None:
    assert parse_foreign_json(number) == json.loads(number)


def test_an_integer_beyond_any_float_is_infinite_however_long_it_is() -> None:
    for num_digits in (310, 5000, 20 << 20):
        found = parse_foreign_json('{"a": [-' + "9" * num_digits + "]}")
        assert found == {"a": [-math.inf]}


def test_not_a_number_is_read_of_others() -> None:
    assert math.isnan(parse_foreign_json("NaN"))


def test_texts_of_others_may_hold_half_a_character() -> None:
    for text in (b'"\\ud83d"', b'"\xed\xa0\xbd"'):
        found = parse_foreign_json(text)
        assert found == "\ud83d"
        assert not is_unicode(found)
    assert is_unicode(parse_foreign_json('"\\ud83d\\ude80"'))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"[]," * 1_100_000 + b"[]]", "more than 64 MiB or 1,000,000 values"),
        (b" " * (64 << 20) + b"1", "more than 64 MiB"),
        (b"", "Expecting value"),
        (b"{} // text", "Extra data"),
        (b'{"a": 1,}', "Expecting property name|Illegal trailing comma"),
        (b"\xff\xfe\x80", "codec can't decode"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Expecting value"),
    ],
)
def test_a_file_of_others_that_is_no_json_or_too_much_is_named(tmp_path: Path, content: bytes, why: str) -> None:
    (path := tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"config.json: .*({why})") as raised:
        read_foreign_json(path)
    assert "\n" not in str(raised.value)


def test_shown_values_are_short_however_large_or_deep() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, list(range(10**6)), {str(key): key for key in range(10**5)}, "x" * 10**7, 10**4000):
        assert len(shown(value)) <= 60
    assert shown("text") == "'text'"
    while deep:
        (deep,) = deep  # type: ignore[assignment]  # taken apart by hand: freeing it at once recurses


def test_a_file_beyond_its_bound_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(3 << 20))
    assert len(read_input(tmp_path / "f", most_bytes=3 << 20)) == 3 << 20
    with pytest.raises(ValueError, match="f: has more than 2 MiB"):
        read_input(tmp_path / "f", most_bytes=2 << 20)
    with pytest.raises(ValueError, match="f, line 1: has more than 1 MiB"):
        list(read_lines(tmp_path / "f", most_bytes=1 << 20))


def test_a_pipe_is_read_where_the_user_names_it_alone(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    writer = threading.Thread(target=lambda: path.write_bytes(b"text"))
    writer.start()
    assert read_input(path, most_bytes=1 << 20, pipes=True) == b"text"
    writer.join(timeout=30)
    with pytest.raises(ValueError, match=r"pipe: cannot be read \(not a regular file\)"):
        read_input(path, most_bytes=1 << 20)
