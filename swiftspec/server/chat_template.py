"""Chat templates: a conversation as the text that a model was trained on.

A model directory has its template in `chat_template.jinja` or in `tokenizer_config.json`. It is a program by whoever
published the model, so it runs in Jinja's sandbox, with the names that transformers' `apply_chat_template` offers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from swiftspec.files.reading import brief, parse_json, read_input
from swiftspec.server.errors import RequestError

__all__ = ["ChatTemplate"]

_MOST_BYTES = 16 << 20
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """A compiled template.

    Parameters
    ----------
    source : str
        In Jinja.
    special_tokens : mapping
        Texts by name, such as `bos_token`, that a template may use.
    where : str
        The template's file, for errors.

    Raises
    ------
    ValueError
        If it is no template.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, str], where: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"{where}: not a chat template (line {error.lineno}: {brief(error)})") from error
        self._special_tokens = dict(special_tokens)

    @classmethod
    def of(cls, directory: Path, file: Path | None = None) -> ChatTemplate | None:
        """The template of a file, or else of a model directory; None if that has none. ValueError if it is corrupt."""
        config_file, jinja_file = directory / "tokenizer_config.json", directory / "chat_template.jinja"
        config = _config(config_file)
        special = {name: text for name in _SPECIAL if (text := _token_text(config.get(name)))}
        file = file or (jinja_file if jinja_file.is_file() else None)
        if file is not None:
            source = read_input(file, most_bytes=_MOST_BYTES).decode(errors="replace")
            return cls(source, special_tokens=special, where=str(file))
        default = _default(config.get("chat_template"))
        return None if default is None else cls(default, special_tokens=special, where=str(config_file))

    def render(self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any] | None = None) -> str:
        """The text that asks for the next message of a conversation. RequestError if the template refuses it.

        arguments: what else the template may know, such as `enable_thinking`.
        """
        known = {**self._special_tokens, **(arguments or {})}
        known |= {"messages": list(messages), "add_generation_prompt": True, "tools": None, "documents": None}
        try:
            return self._template.render(known)
        except _RefusedError as error:
            raise RequestError(f"messages: {error}", param="messages") from error
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise RequestError(
                f"messages: the model's chat template fails ({brief(error)})", param="messages"
            ) from error


class _RefusedError(Exception):
    """A template says that a conversation is not possible."""


def _raise(message: str) -> None:
    raise _RefusedError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    """As transformers, not as Jinja, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config = parse_json(read_input(file, most_bytes=_MOST_BYTES))
    except ValueError as error:
        raise ValueError(f"{file}: not JSON ({brief(error)})") from error
    return config if isinstance(config, dict) else {}


def _token_text(token: Any) -> str | None:
    """A special token's text; old files have an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _default(template: Any) -> str | None:
    """The template that is used unless another one is named: some files have several."""
    if isinstance(template, list):
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
