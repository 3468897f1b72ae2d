"""The command of a served plan in an engine's words: the one writer of all engines."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from swiftspec.engines import Engine
from swiftspec.engines.words import CommandWords, LengthRange, Value, Words
from swiftspec.export.served import Served
from swiftspec.policies.effects import Role

__all__ = ["Command", "written"]

_FP8 = "Weights in fp8: {engine} reads them from the checkpoint; name one in fp8 in place of {model}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A server's command line; fields as of `Export`."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    schedule: tuple[LengthRange, ...] = ()
    not_expressed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def written(engine: Engine, words: CommandWords, served: Served) -> Command:
    """Options, variables and files of the engine's server, and what to know of them."""
    files: dict[str, str] = {}
    if served.schedule and engine.schedule is not None:
        value = engine.schedule.write(served.schedule)
        if name := engine.schedule.file:
            files[name], value = str(value), name
        served = replace(served, written_schedule=value)
    speculation, placed = _speculation(engine, served), dict[str, Any]()
    if words.file:
        settings = _filled(words.settings, served) | _settings(engine, served)
        settings |= {words.speculation: speculation} if speculation else {}
        if settings:
            files[words.file] = _yaml(settings)
            served = replace(served, file=words.file)
    elif words.speculation:
        placed = {words.speculation: json.dumps(speculation)} if speculation else {}
    else:
        placed = speculation = {name: value if value is True else str(value) for name, value in speculation.items()}
    variables = engine.imitation.environment if served.rates is not None and engine.imitation else {}
    return Command(
        arguments=(
            *(str(_value(word, served)) for word in words.program),
            *_flags(_filled(words.options, served) | placed),
        ),
        environment={name: str(value) for name, value in _filled(variables, served).items()},
        files=files,
        configuration=speculation,
        schedule=served.schedule,
        not_expressed=tuple(_not_expressed(engine, words, served)),
        remarks=tuple(_remarks(engine, words, served)),
    )


def _speculation(engine: Engine, served: Served) -> dict[str, Any]:
    if served.method is None:
        return {}
    found = _filled(engine.methods[served.method].words, served)
    if served.schedule and engine.schedule is not None:
        found |= _filled(engine.schedule.words, served)
    if served.rates is not None and engine.imitation is not None:
        found |= _filled(engine.imitation.words, served)
        found |= _filled(engine.imitation.draft_words, served) if served.draft is not None else {}
    return found


def _settings(engine: Engine, served: Served) -> dict[str, Any]:
    return {} if served.method is None else _filled(engine.methods[served.method].settings, served)


def _not_expressed(engine: Engine, words: CommandWords, served: Served) -> Iterator[str]:
    if served.rates is not None and engine.imitation is not None and engine.imitation.lost:
        yield engine.imitation.lost
    if not words.quantises:
        for role, model in ((Role.TARGET, served.target), (Role.DRAFT, served.draft)):
            if model is not None and served.quantisation.get(role) == "fp8":
                yield _FP8.format(engine=engine.full_name, model=model)


def _remarks(engine: Engine, words: CommandWords, served: Served) -> Iterator[str]:
    method = None if served.method is None else engine.methods[served.method]
    schedule = engine.schedule if served.schedule else None
    sentences = (
        words.remark,
        method.remark if method else "",
        engine.tree_remark if served.policy.num_candidates > 1 else "",
        schedule.remark if schedule else "",
    )
    yield from filter(None, sentences)


def _filled(words: Words, served: Served) -> dict[str, Any]:
    """The words that the plan has a value for."""
    found = {word: _value(value, served) for word, value in words.items()}
    return {word: value for word, value in found.items() if value is not None}


def _value(word: object, served: Served) -> object:
    return attrgetter(word)(served) if isinstance(word, Value) else word


def _flags(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        yield name
        if value is not True:
            yield str(value)


def _yaml(values: Mapping[Any, Any], indent: str = "") -> str:
    """Nested mappings of plain values as YAML, of which JSON's scalars are a part."""
    lines = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{key}:\n{_yaml(value, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return "".join(lines)
