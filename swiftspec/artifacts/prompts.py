"""Prompts files: JSON lines with `prompt`, or Spec-Bench's `turns`. Text only; no tokenizer, no torch."""

import os
import stat
import tempfile
from array import array
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload
from weakref import finalize

from swiftspec.errors import FieldError
from swiftspec.files.reading import open_input, parse_json, read_lines, shown

_MOST_LINE_BYTES = 16 << 20  # a text of millions of tokens
_MOST_PROMPTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A text to continue and the id in results."""

    prompt_id: str
    text: str

    def __post_init__(self) -> None:
        if not self.text:
            raise ValueError("prompt is empty; expected some text")


def read_prompts(path: Path) -> "PromptFile":
    """Every prompt of a file, in order; blank lines are skipped.

    The id is `id` or `question_id`, else the line's number. Of Spec-Bench's `turns` the first is taken. Other fields (a
    category, a reference answer) are ignored.

    ValueError: one sentence naming file, line and fault.
    """
    return PromptFile(path)


class PromptFile(Sequence[Prompt]):
    """The prompts of a file, each read on demand, so that memory does not grow with the file.

    The whole file is checked first. It stays open, and a pipe is copied to a temporary file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts, self._sizes, self._numbers = array("Q"), array("Q"), array("Q")  # of the lines with a prompt
        source = open_input(path, pipes=True)
        is_copy = not stat.S_ISREG(os.fstat(source).st_mode)
        self._file = tempfile.TemporaryFile() if is_copy else os.fdopen(source, "rb")  # noqa: SIM115  # it stays open
        finalize(self, self._file.close)
        try:
            self._index(source, is_copy=is_copy)
        finally:
            if is_copy:
                os.close(source)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Prompt: ...

    @overload
    def __getitem__(self, index: slice) -> list[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | list[Prompt]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        line = os.pread(self._file.fileno(), self._sizes[index], self._starts[index])
        return _parsed(self._path, self._numbers[index], line)

    def _index(self, source: int, *, is_copy: bool) -> None:
        """Find the lines with a prompt, and check each."""
        line_of: dict[str, int] = {}
        start = 0
        for number, line in read_lines(self._path, most_bytes=_MOST_LINE_BYTES, descriptor=source):
            if is_copy:
                self._file.write(line)
            if line.removeprefix(BOM_UTF8).strip():
                prompt = _parsed(self._path, number, line)
                if prompt.prompt_id in line_of:
                    known = line_of[prompt.prompt_id]
                    raise ValueError(
                        f"{self._path}, line {number}: id is {shown(prompt.prompt_id)}, as in line {known}"
                    )
                line_of[prompt.prompt_id] = number
                if len(line_of) > _MOST_PROMPTS:
                    raise ValueError(f"{self._path}, line {number}: more than {_MOST_PROMPTS:,} prompts in one file")
                self._starts.append(start)
                self._sizes.append(len(line))
                self._numbers.append(number)
            start += len(line)
        if is_copy:
            self._file.flush()
        if not self:
            raise ValueError(f"{self._path}: holds no prompts; expected one JSON object per line")


def spread(prompts: Sequence[Prompt], limit: int | None) -> Sequence[Prompt]:
    """At most `limit` prompts, evenly spread; the same ones every time."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[number * len(prompts) // limit] for number in range(limit)]


def evenly(count: int) -> list[int]:
    """The numbers below `count`, so ordered that the first few, however many, are spread over all of them."""
    bits = max(1, (count - 1).bit_length())
    reversed_bits = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [number for number in reversed_bits if number < count]


def stretched(tokens: Sequence[int], length: int) -> list[int]:
    """A prompt of a wanted length: the last ones of its tokens, or all of them over and over."""
    repeats = -(-length // len(tokens))
    return ([*tokens] * repeats)[-length:]


def _parsed(path: Path, number: int, line: bytes) -> Prompt:
    try:
        fields = parse_json(line.removeprefix(BOM_UTF8) if number == 1 else line)
        if not isinstance(fields, Mapping):
            raise ValueError(f"a JSON {type(fields).__name__}; expected an object with a prompt")
        return Prompt(prompt_id=_id(fields, number), text=_text(fields))
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error


def _id(fields: Mapping[str, Any], number: int) -> str:
    name = "id" if "id" in fields else "question_id"
    value = fields.get(name, number)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{name} is {shown(value)}; expected text or a whole number")
    return str(value)


def _text(fields: Mapping[str, Any]) -> str:
    if "prompt" in fields:
        name, text = "prompt", fields["prompt"]
    elif "turns" in fields:
        name, turns = "turns", fields["turns"]
        if not isinstance(turns, list) or not turns:
            raise FieldError("turns", shown(turns), "expected a list of texts")
        text = turns[0]
    else:
        raise ValueError("prompt is missing; expected a prompt field, or Spec-Bench turns")
    if not isinstance(text, str):
        raise ValueError(f"{name} is {shown(text)}; expected text")
    if not text:
        raise ValueError(f"{name} is empty; expected some text")
    return text
