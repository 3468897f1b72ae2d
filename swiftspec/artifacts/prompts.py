"""Prompts files: JSON lines with `prompt`, or Spec-Bench's `turns`. Text only; no tokenizer, no torch."""

from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftspec.errors import FieldError
from swiftspec.files.reading import parse_json, read_lines, shown

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


def read_prompts(path: Path) -> list[Prompt]:
    """Every prompt of a file or a pipe, in order; blank lines are skipped.

    The id is `id` or `question_id`, else the line's number. Of Spec-Bench's `turns` the first is taken. Other fields (a
    category, a reference answer) are ignored.

    ValueError: one sentence naming file, line and fault.
    """
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    for number, line in read_lines(path, most_bytes=_MOST_LINE_BYTES, pipes=True):
        if not line.removeprefix(BOM_UTF8).strip():
            continue
        prompt = _parsed(path, number, line)
        known = line_of.setdefault(prompt.prompt_id, number)
        if known != number:
            raise ValueError(f"{path}, line {number}: id is {shown(prompt.prompt_id)}, as in line {known}")
        prompts.append(prompt)
        if len(prompts) > _MOST_PROMPTS:
            raise ValueError(f"{path}, line {number}: more than {_MOST_PROMPTS:,} prompts in one file")
    if not prompts:
        raise ValueError(f"{path}: holds no prompts; expected one JSON object per line")
    return prompts


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
