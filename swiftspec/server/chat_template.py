"""Chat templates: a conversation as the text that a model was trained on.

A model directory has its template in `chat_template.jinja` or in `tokenizer_config.json`. It is a program by whoever
published the model, so it runs in Jinja's sandbox, with the names that transformers' `apply_chat_template` offers, and
in a process of its own: `main`, which a `Renderer` starts. Messages in either direction are JSON after four bytes of
length. First come templates, then conversations. Each message is answered by `{"text": ..}`, or by `{"error": ..}` with
a sentence. A template that computes for too long ends the process.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Self

from jinja2 import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from swiftspec.files.reading import brief, parse_foreign_json, read_foreign_json, read_input

__all__ = ["LENGTH", "WITHIN_S", "ChatTemplate", "TemplateSource", "main"]

LENGTH = struct.Struct("!I")
WITHIN_S = 5.0  # of an answer
_MOST_BYTES = 16 << 20
_MOST_MEMORY_BYTES = 1 << 30
_MOST_CHARACTERS = 8 << 20  # of a text
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSource:
    """A template that is not compiled yet.

    Parameters
    ----------
    source : str
        In Jinja.
    special_tokens : mapping
        Texts by name, such as `bos_token`, that a template may use.
    where : str
        The template's file, for errors.
    """

    source: str
    special_tokens: Mapping[str, str]
    where: str

    @classmethod
    def of(cls, directory: Path, file: Path | None = None) -> Self | None:
        """The template of a file, or else of a model directory; None if that has none. ValueError if it is corrupt."""
        config_file, jinja_file = directory / "tokenizer_config.json", directory / "chat_template.jinja"
        config = _config(config_file)
        special = {name: text for name in _SPECIAL if (text := _token_text(config.get(name)))}
        file = file or (jinja_file if jinja_file.is_file() else None)
        if file is not None:
            source = read_input(file, most_bytes=_MOST_BYTES).decode(errors="replace")
            return cls(source=source, special_tokens=special, where=str(file))
        default = _default(config.get("chat_template"))
        return None if default is None else cls(source=default, special_tokens=special, where=str(config_file))


class ChatTemplate:
    """A compiled template. ValueError if it is none."""

    def __init__(self, described: TemplateSource) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(described.source)
        except TemplateSyntaxError as error:
            where = f"line {error.lineno}: {brief(error)}"
            raise ValueError(f"{described.where}: not a chat template ({where})") from error
        except Exception as error:  # for example RecursionError, and whatever its constants compute
            raise ValueError(f"{described.where}: not a chat template ({brief(error)})") from error
        self._special_tokens = dict(described.special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any] | None = None) -> str:
        """The text that asks for the next message of a conversation. ValueError if the template refuses it.

        arguments: what else the template may know, such as `enable_thinking`.
        """
        known = {**self._special_tokens, **(arguments or {})}
        known |= {"messages": list(messages), "add_generation_prompt": True, "tools": None, "documents": None}
        try:
            return self._template.render(known)
        except _RefusedError as error:
            raise ValueError(f"messages: {brief(error)}") from error
        except Exception as error:  # a template is a program, and may raise anything
            why = brief(error) or type(error).__name__
            raise ValueError(f"messages: the model's chat template fails ({why})") from error


class _RefusedError(Exception):
    """A template says that a conversation is not possible."""


def _raise(message: str) -> None:
    raise _RefusedError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    """JSON as transformers writes it; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _config(file: Path) -> dict[str, Any]:
    config = read_foreign_json(file) if file.is_file() else {}
    return config if isinstance(config, dict) else {}


def _token_text(token: Any) -> str | None:
    """A special token's text; old files have an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return _whole(text) if isinstance(text, str) else None


def _default(template: Any) -> str | None:
    """The template that is used unless another one is named: some files have several."""
    if isinstance(template, list):
        named = (each for each in template if isinstance(each, dict) and each.get("name") == "default")
        template = next(named, {}).get("template")
    return _whole(template) if isinstance(template, str) else None


def _whole(text: str) -> str:
    """A text without halves of surrogate pairs, which a JSON file may have, and no tokenizer takes."""
    return text.encode(errors="replace").decode()


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; what counts is the input's end
    templates: list[ChatTemplate] = []
    while (asked := _read(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_REAL, WITHIN_S)  # its signal ends the process, whatever that computes
        content = json.dumps(_answer(asked, templates)).encode()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        sys.stdout.buffer.write(LENGTH.pack(len(content)) + content)
        sys.stdout.buffer.flush()


def _read(stream: BinaryIO) -> Any:
    head = stream.read(LENGTH.size)
    return parse_foreign_json(stream.read(*LENGTH.unpack(head))) if len(head) == LENGTH.size else None


def _answer(asked: dict[str, Any], templates: list[ChatTemplate]) -> dict[str, str]:
    try:
        if "templates" in asked:
            templates[:] = [ChatTemplate(TemplateSource(**each)) for each in asked["templates"]]
            return {"text": ""}
        text = templates[asked["number"]].render(asked["messages"], asked["arguments"])
    except ValueError as error:
        return {"error": str(error)}
    if len(text) > _MOST_CHARACTERS:
        return {"error": f"messages: the chat template makes {len(text)} characters of them, over {_MOST_CHARACTERS}"}
    return {"text": text}
