"""Prompts files: JSON lines with `prompt`, or Spec-Bench's `turns`. Text only; no tokenizer, no torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Prompt", "read_prompts", "spread"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A text to continue and the id under which results are reported."""

    prompt_id: str
    text: str

    def __post_init__(self) -> None:
        if not self.text:
            raise ValueError("prompt is empty; expected some text")


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Every prompt of a file, in order; blank lines are skipped.

    The id is `id` or `question_id`, else the line's number. Of Spec-Bench's `turns` the first is taken. Other fields
    (a category, a reference answer) belong to whoever wrote the file and are left alone.

    Raises
    ------
    ValueError
        One sentence naming file, line and what is wrong with it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    prompts: list[Prompt] = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _parsed(line, number)
            if prompt.prompt_id in line_of:
                raise ValueError(f"id is {prompt.prompt_id!r}, as in line {line_of[prompt.prompt_id]}")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        line_of[prompt.prompt_id] = number
        prompts.append(prompt)
    if not prompts:
        raise ValueError(f"{path}: holds no prompts; expected one JSON object per line")
    return tuple(prompts)


def spread(prompts: Sequence[Prompt], limit: int | None) -> Sequence[Prompt]:
    """At most `limit` prompts, evenly spread; the same ones every time."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[number * len(prompts) // limit] for number in range(limit)]


def _parsed(line: str, number: int) -> Prompt:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(fields, Mapping):
        raise ValueError(f"a JSON {type(fields).__name__}; expected an object with a prompt")
    return Prompt(prompt_id=_id(fields, number), text=_text(fields))


def _id(fields: Mapping[str, Any], number: int) -> str:
    name = "id" if "id" in fields else "question_id"
    value = fields.get(name, number)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{name} is {value!r}; expected text or a whole number")
    return str(value)


def _text(fields: Mapping[str, Any]) -> str:
    if "prompt" in fields:
        name, text = "prompt", fields["prompt"]
    elif "turns" in fields:
        name, turns = "turns", fields["turns"]
        if not isinstance(turns, list) or not turns:
            raise ValueError(f"turns is {turns!r}; expected a list of texts")
        text = turns[0]
    else:
        raise ValueError("prompt is missing; expected a prompt field, or Spec-Bench turns")
    if not isinstance(text, str):
        raise ValueError(f"{name} is {text!r}; expected text")
    if not text:
        raise ValueError(f"{name} is empty; expected some text")
    return text
