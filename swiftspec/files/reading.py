"""Bounded readers: limits on memory and time for any input file.

Every error is a ValueError of one sentence that names the file. JSON of this program's own formats is also checked for
numbers and texts that no such file has. JSON that other programs write, such as a model's config.json, is not: it may
say what it likes in fields that nobody here reads, so whoever reads a field checks it.
"""

import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from reprlib import Repr
from typing import Any

# Flags of os.open: not to become the terminal of this process, and not to wait. Windows has neither.
NO_TERMINAL, _NO_WAITING = getattr(os, "O_NOCTTY", 0), getattr(os, "O_NONBLOCK", 0)
MOST_JSON_BYTES = 24 << 20  # a profile of 16 GPUs has 3 MB
_MOST_JSON_VALUES = 1_000_000  # and 130,000 values; an empty object takes twenty times the memory of its text
_MOST_KEYS = 10_000  # of one object: a large model has 1,200 tensors
_MOST_DIGITS = 18  # of an integer, so that it fits in 64 bits
_MOST_FOREIGN_BYTES = 64 << 20  # the index of a checkpoint with 280,000 tensors has 30 MB
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair
_SHOWN_CHARACTERS = 60
_BRIEF_CHARACTERS = 200


def shown(value: object) -> str:
    """A value as an error message quotes it: short however large or deep it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def brief(error: BaseException) -> str:
    """A library's error on one line, cut short, since it may quote a whole file."""
    text = " ".join(str(error).split())
    return text if len(text) <= _BRIEF_CHARACTERS else text[: _BRIEF_CHARACTERS - 3] + "..."


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _SHOWN_CHARACTERS + 1
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20


def open_input(path: Path, *, pipes: bool = False) -> int:
    """A descriptor of a file to read.

    pipes: allow a pipe, as in `--plan <(...)`. A file named inside another file may not be one: opening a pipe waits
    for its writer.
    """
    try:
        # Opening must not wait for a pipe that is not allowed; for a regular file the flag changes nothing.
        descriptor = os.open(path, os.O_RDONLY | NO_TERMINAL | (0 if pipes else _NO_WAITING))
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: cannot be read ({error})") from error  # a zero byte, which repr shows
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or (pipes and not stat.S_ISDIR(mode)):
        return descriptor
    os.close(descriptor)
    what = "Is a directory" if stat.S_ISDIR(mode) else "not a regular file"
    raise ValueError(f"{path}: cannot be read ({what})")


def read_input(path: Path, *, most_bytes: int, pipes: bool = False) -> bytes:
    """A whole file of at most `most_bytes`; a longer one is not kept. `pipes` as for `open_input`."""
    with os.fdopen(open_input(path, pipes=pipes), "rb") as file:
        try:
            content = file.read(most_bytes + 1) if os.fstat(file.fileno()).st_size <= most_bytes else None
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if content is None or len(content) > most_bytes:
        raise ValueError(f"{path}: has more than {most_bytes >> 20} MiB, the most that is read of such a file")
    return content


def read_lines(path: Path, *, most_bytes: int, pipes: bool = False) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line, one at a time, none longer than `most_bytes`. `pipes` as for `open_input`."""
    with os.fdopen(open_input(path, pipes=pipes), "rb") as file:
        number = 0
        try:
            while line := file.readline(most_bytes + 1):
                number += 1
                if len(line) > most_bytes:
                    raise ValueError(
                        f"{path}, line {number}: has more than {most_bytes >> 20} MiB, the most that is read of a line"
                    )
                yield number, line
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path, *, pipes: bool = False) -> Any:
    """The value of a JSON file. `pipes` as for `open_input`."""
    return _named(path, parse_json, read_input(path, most_bytes=MOST_JSON_BYTES, pipes=pipes))


def read_foreign_json(path: Path) -> Any:
    """The value of a JSON file that another program wrote, such as a model's config.json; see `parse_foreign_json`."""
    return _named(path, parse_foreign_json, read_input(path, most_bytes=_MOST_FOREIGN_BYTES))


def _named(path: Path, parse: Callable[[bytes], Any], content: bytes) -> Any:
    try:
        return parse(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def parse_json(content: bytes | str) -> Any:
    """The value of a JSON text. ValueError, without a file name, if it is too large, too deep or not JSON."""
    text = _json_text(content, most_bytes=MOST_JSON_BYTES)
    has_long_numbers = False

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(pairs) > _MOST_KEYS:
            raise ValueError(f"an object of {len(pairs)} fields; no file of this program has more than {_MOST_KEYS}")
        return dict(pairs)

    def integer(digits: str) -> int | _LongNumber:
        nonlocal has_long_numbers
        if len(digits.lstrip("-")) <= _MOST_DIGITS:
            return int(digits)
        has_long_numbers = True
        return _LongNumber(digits)

    value = _parsed(text, parse_int=integer, object_pairs_hook=mapping)
    if has_long_numbers and (long := _find(value, lambda item: isinstance(item, _LongNumber))) is not None:
        raise ValueError(f"{long[0]} is {shown(str(long[1]))}; expected a number of at most {_MOST_DIGITS} digits")
    may_have_halves = "\\ud" in text or "\\uD" in text or not is_unicode(text)  # escapes or surrogates
    if (
        may_have_halves
        and (odd := _find(value, lambda item: isinstance(item, str) and not is_unicode(item))) is not None
    ):
        raise ValueError(f"{odd[0]} is {shown(odd[1])}; expected Unicode text, without halves of surrogate pairs")
    return value


def parse_foreign_json(content: bytes | str) -> Any:
    """The value of a JSON text that another program wrote.

    Only its size and depth are bounded. As in Python's `json`, integers may be long, numbers may be NaN and infinite,
    the last of several equal keys counts, and texts may hold halves of surrogate pairs (see `is_unicode`). An integer
    beyond any float is infinite. So check the type, the range and the text of each field that you read. ValueError,
    without a file name, if it is too large, too deep or not JSON.
    """
    text = _json_text(content, most_bytes=_MOST_FOREIGN_BYTES, errors="surrogatepass")
    return _parsed(text, parse_int=_foreign_integer)


def is_unicode(text: str) -> bool:
    """Whether a text is one that can be encoded: it has no halves of surrogate pairs."""
    return _HALF.search(text) is None


def _foreign_integer(digits: str) -> int | float:
    """The integer, or infinity: Python refuses to convert digits by the thousand, and floats end earlier."""
    number = float(digits)
    return number if math.isinf(number) else int(digits)


def _parsed(text: str, **hooks: Any) -> Any:
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("not a JSON document (nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"not a JSON document ({error})") from error


def _json_text(content: bytes | str, *, most_bytes: int, errors: str = "strict") -> str:
    """The text, unless it is too long to be parsed."""
    too_much = f"not a JSON document (more than {most_bytes >> 20} MiB or {_MOST_JSON_VALUES:,} values)"
    if len(content) > most_bytes:
        raise ValueError(too_much)
    try:
        text = content if isinstance(content, str) else content.decode(json.detect_encoding(content), errors)
    except ValueError as error:
        raise ValueError(f"not a JSON document ({error})") from error
    if sum(map(text.count, ",{[")) > _MOST_JSON_VALUES:
        raise ValueError(too_much)
    return text


class _LongNumber(str):
    """The digits of an integer that is too long to be accepted."""

    __slots__ = ()


def _find(value: Any, is_wanted: Callable[[Any], bool]) -> tuple[str, Any] | None:
    """The first matching item of a document, or key of an object, and its path: `steps[3].rows`."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, found = waiting.pop()
        if is_wanted(found):
            return path.lstrip(".") or "value", found
        if isinstance(found, dict):
            waiting += [(f"{path}.{shown(key)[1:-1]}", item) for key, item in found.items()]
            waiting += [(f"key of {path.lstrip('.') or 'the document'}", key) for key in found]
        elif isinstance(found, list):
            waiting += [(f"{path}[{index}]", item) for index, item in enumerate(found)]
    return None
