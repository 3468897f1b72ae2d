"""Chat templates: a conversation as the text that a model was trained on.

A model directory has its template in `chat_template.jinja` or in `tokenizer_config.json`. It is a program by whoever
published the model, so it runs in Jinja's sandbox, with the names that transformers' `apply_chat_template` offers, and
in a process of its own: `main`, which a `Renderer` starts. Messages in either direction are JSON after four bytes of
length. First come templates, then conversations. Each message is answered by `{"text": ..}`, or by `{"error": ..}` with
a sentence. A template that computes for too long ends the process.
"""

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

from jinja2 import Environment, Template, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from swiftspec.files.reading import brief, parse_foreign_json, read_foreign_json, read_input

LENGTH = struct.Struct("!I")
WITHIN_S = 5.0  # of an answer
_MOST_BYTES = 16 << 20
_MOST_MEMORY_BYTES = 1 << 30
_MOST_CHARACTERS = 8 << 20  # of a text
_ADDITIONAL = "additional_chat_templates"  # a folder, where transformers keeps those that are not the default
_DEFAULT, _TOOL_USE = "default", "tool_use"
_TAG = "\ue000 the end of the last message \ue001 "  # in no text that a model was trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSource:
    """A model's template that is not compiled yet.

    named: in Jinja, by name: most models have a `default` only, some have one for `tool_use`. special_tokens: texts by
    name, such as `bos_token`, that a template may use. where: the template's file, for errors.
    """

    named: Mapping[str, str]
    special_tokens: Mapping[str, str]
    where: str

    @classmethod
    def of(cls, directory: Path, file: Path | None = None) -> Self | None:
        """The template of a file, or else of a model directory; None if that has none. ValueError if it is corrupt."""
        config_file, jinja_file = directory / "tokenizer_config.json", directory / "chat_template.jinja"
        config = _config(config_file)
        special = {name: text for name in config if name.endswith("_token") and (text := _token_text(config[name]))}
        if file is not None:
            return cls(named={_DEFAULT: _read_template(file)}, special_tokens=special, where=str(file))
        named, where = _named(config.get("chat_template")), config_file
        if jinja_file.is_file():
            named, where = {_DEFAULT: _read_template(jinja_file)}, jinja_file
        named |= {path.stem: _read_template(path) for path in sorted((directory / _ADDITIONAL).glob("*.jinja"))}
        return cls(named=named, special_tokens=special, where=str(where)) if named else None


class ChatTemplate:
    """A model's compiled templates. ValueError if one of them is none."""

    def __init__(self, described: TemplateSource) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._templates = {
            name: _compiled(environment, source, described.where) for name, source in described.named.items()
        }
        self._special_tokens = dict(described.special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The text that asks for the next message of a conversation. ValueError if the template refuses it.

        arguments: what else the template may know, such as `enable_thinking`. add_generation_prompt: whether an answer
        begins at its end. continue_final_message: end with the last message's text, which the model goes on with.
        """
        name = _TOOL_USE if tools is not None and _TOOL_USE in self._templates else _DEFAULT
        if name not in self._templates:
            raise ValueError(f"messages: the model has chat templates {', '.join(self._templates)}; expected a default")
        said = list(messages)
        if continue_final_message and not said:
            raise ValueError("messages: there is none to continue; expected one")
        if continue_final_message:
            said[-1] = {**said[-1], "content": f"{said[-1]['content']}{_TAG}"}
        known = {**self._special_tokens, **(arguments or {})}
        known |= {"messages": said, "tools": tools, "documents": documents}
        try:
            text = self._templates[name].render(known | {"add_generation_prompt": add_generation_prompt})
        except _RefusedError as error:
            raise ValueError(f"messages: {brief(error)}") from error
        except Exception as error:  # a template is a program, and may raise anything
            why = brief(error) or type(error).__name__
            raise ValueError(f"messages: the model's chat template fails ({why})") from error
        return _up_to_tag(text, messages[-1]["content"]) if continue_final_message else text


def _compiled(environment: Environment, source: str, where: str) -> Template:
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ValueError(f"{where}: not a chat template (line {error.lineno}: {brief(error)})") from error
    except Exception as error:  # for example RecursionError, and whatever its constants compute
        raise ValueError(f"{where}: not a chat template ({brief(error)})") from error


def _up_to_tag(text: str, final: str) -> str:
    """A conversation's text up to the end of its last message, cut as transformers does. ValueError without it."""
    before, tag, after = text.rpartition(_TAG.strip())
    if not tag or final.strip() not in before:
        raise ValueError("messages: the chat template leaves out or changes the last one, so it cannot be continued")
    # Without the blank after it the template trims messages: then the blanks at their ends are not the model's either.
    return before if after.startswith(" ") else before.rstrip()


class _Generation(Extension):
    """`{% generation %}` blocks, which mark what the model has written, for training: their content, as it is."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _RefusedError(Exception):
    """A template says that a conversation is not possible."""


def _raise(message: str) -> None:
    raise _RefusedError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON with the options that transformers has, in its order; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _config(file: Path) -> dict[str, Any]:
    config = read_foreign_json(file) if file.is_file() else {}
    return config if isinstance(config, dict) else {}


def _token_text(token: Any) -> str | None:
    """A special token's text; old files have an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return _whole(text) if isinstance(text, str) else None


def _named(template: Any) -> dict[str, str]:
    """Templates by name: some files have a list of several."""
    if isinstance(template, str):
        return {_DEFAULT: _whole(template)}
    found = (each for each in template if isinstance(each, dict)) if isinstance(template, list) else ()
    pairs = ((each.get("name"), each.get("template")) for each in found)
    return {name: _whole(text) for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _read_template(file: Path) -> str:
    return read_input(file, most_bytes=_MOST_BYTES).decode(errors="replace")


def _whole(text: str) -> str:
    """A text without halves of surrogate pairs, which a JSON file may have, and no tokenizer takes."""
    return text.encode(errors="replace").decode()


def main() -> None:
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
        text = templates[asked["number"]].render(**asked["conversation"])
    except ValueError as error:
        return {"error": str(error)}
    if len(text) > _MOST_CHARACTERS:
        return {"error": f"messages: the chat template makes {len(text)} characters of them, over {_MOST_CHARACTERS}"}
    return {"text": _whole(text)}
