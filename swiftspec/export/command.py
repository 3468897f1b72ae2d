"""The command of a served plan in an engine's words, for all engines; and as a server of this machine takes it."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from swiftspec.artifacts.plan import GroupMemory
from swiftspec.engines import Engine
from swiftspec.engines.description import StepLimits
from swiftspec.engines.words import CommandWords, LengthRange, Method, Value, Words
from swiftspec.errors import FieldError
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.trees.eagle2 import Eagle2Tree

__all__ = ["Command", "ServerSettings", "local_arguments", "server_command"]

_FP8 = "Weights in fp8: {engine} reads them from the checkpoint; name one in fp8 in place of {model}."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Models, devices and policy of a server. Every `Value` of an engine's words is an attribute, None for none.

    target: repository or directory.
    draft: the same of the draft; None if the policy has none, or it comes with the target.
    method: how tokens are drafted; None if none are.
    policy: one that the engine can run.
    layout: how the devices share the target.
    draft_degree: devices that divide the draft of a rank.
    dtype: of weights that are not quantised, `bfloat16`; the checkpoint's own if None.
    quantisation: `fp8`, `int8` or `int4` by role; roles without any are left out.
    schedule: draft tokens by requests at once; empty if their number is fixed.
    written_schedule: the same as the engine writes it.
    file: name of the file of settings, if there are any.
    max_running: requests at once.
    limits, usual: those that the plan assumed of the engine, and its own; None if it assumed none.
    is_loaded: whether the plan was made for a load, under these limits.
    kv_dtype: format of keys and values, as the engine writes it.
    max_context: tokens of the longest request that was planned for.
    memory: what is on each device.
    device_bytes: memory of a device.
    rates: acceptance to imitate: shares of the rounds in which at least 1, 2, .. draft tokens are accepted.
    address: of the draft server, if there is one.
    """

    target: str
    draft: str | None
    method: Method | None
    policy: Policy
    layout: DeviceLayout
    draft_degree: int
    dtype: str | None = None
    quantisation: Mapping[Role, str] = field(default_factory=dict)
    schedule: tuple[LengthRange, ...] = ()
    written_schedule: object = None
    file: str | None = None
    max_running: int | None = None
    limits: StepLimits | None = None
    usual: StepLimits | None = None
    is_loaded: bool = False
    kv_dtype: str | None = None
    max_context: int | None = None
    memory: GroupMemory | None = None
    device_bytes: int = 0
    rates: tuple[float, ...] | None = None
    address: str = ""

    @property
    def drafter_settings(self) -> str | None:
        """What our drafter is told in a server, as JSON."""
        return json.dumps({"swiftspec": {"address": self.address}}) if self.address else None

    @property
    def ranks(self) -> int | None:
        """Ranks of attention in data parallel, if there are several."""
        return self.layout.dp if self.layout.dp > 1 else None

    @property
    def has_ranks(self) -> bool | None:
        return True if self.layout.dp > 1 else None

    @property
    def whole_experts(self) -> bool | None:
        return True if self.layout.ep > 1 else None

    @property
    def expert_degree(self) -> int | None:
        """Devices with whole experts, if they have these."""
        return self.layout.ep if self.layout.ep > 1 else None

    @property
    def max_running_of_rank(self) -> int | None:
        return None if self.max_running is None else -(-self.max_running // self.layout.dp)

    @property
    def step_tokens(self) -> int | None:
        return self.limits.step_tokens if self.limits and self.is_loaded else None

    @property
    def changed(self) -> "_Changed":
        """Limits that the user changed."""
        return _Changed(self.limits, self.usual)

    @property
    def step_by_step(self) -> bool | None:
        """Whether the user switched off that the next step is formed while one runs."""
        return True if self.limits and self.usual and self.usual.runs_ahead > self.limits.runs_ahead else None

    @property
    def waits(self) -> bool | None:
        return True if self.changed.prompt_wait else None

    @property
    def reuses_blocks(self) -> bool | None:
        """Whether there is a prefix cache."""
        return bool(self.limits.prefix_block) if self.limits else None

    @property
    def prefix_cache(self) -> bool | None:
        return self.reuses_blocks or None

    @property
    def no_prefix_cache(self) -> bool | None:
        return True if self.reuses_blocks is False else None

    @property
    def memory_share(self) -> float | None:
        """Of a device, for weights, cache, graphs and workspace."""
        return None if self.memory is None else round(self.memory.usable_bytes / self.device_bytes, 3)

    @property
    def static_share(self) -> float | None:
        """Of a device, for weights and cache."""
        if self.memory is None:
            return None
        return _rounded_down((self.memory.usable_bytes - self.memory.reserve_bytes) / self.device_bytes)

    @property
    def free_share(self) -> float | None:
        """Of what weights, graphs and workspace leave, for the cache."""
        if self.memory is None:
            return None
        loaded = self.memory.loaded_bytes
        return _rounded_down((self.memory.usable_bytes - loaded) / (self.device_bytes - loaded))

    @property
    def equal_parts(self) -> str:
        """`1,1` of two devices."""
        return ",".join(["1"] * self.layout.num_devices)

    @property
    def target_fp8(self) -> str | None:
        return self._fp8(Role.TARGET)

    @property
    def draft_fp8(self) -> str | None:
        return self._fp8(Role.DRAFT)

    @property
    def other_draft_format(self) -> str | None:
        """The draft's format where it would inherit another one from the target."""
        if self.draft_fp8 and not self.target_fp8:
            return "fp8"
        return "unquant" if self.target_fp8 and Role.DRAFT not in self.quantisation else None

    def _fp8(self, role: Role) -> str | None:
        return "fp8" if self.quantisation.get(role) == "fp8" else None

    @property
    def num_draft_tokens(self) -> int:
        """Of a round, at most."""
        longest = max((each.num_draft_tokens for each in self.schedule), default=0)
        return longest or self.policy.target_rows - 1

    @property
    def levels(self) -> int:
        """Draft forwards of a round; one of EAGLE-2 adds one level."""
        return self.policy.depth + 1 if isinstance(self.policy, Eagle2Tree) else self.policy.target_rows - 1

    @property
    def width(self) -> int:
        """Tokens that follow one of a tree; 1 of a chain."""
        return self.policy.top_k if isinstance(self.policy, Eagle2Tree) else 1

    @property
    def match_and_draft(self) -> int | None:
        """Tokens of the longest match and of the draft after it."""
        lookup = self.policy
        return lookup.longest_match + lookup.num_draft_tokens if isinstance(lookup, PromptLookup) else None

    @property
    def rounded_rates(self) -> list[float] | None:
        return None if self.rates is None else [round(rate, 4) for rate in self.rates]

    @property
    def round_tokens(self) -> str | None:
        """Tokens of a round that is imitated, the bonus token included."""
        return None if self.rates is None else f"{1 + sum(self.rates):.4f}"

    @property
    def accepted_tokens(self) -> str | None:
        """The same without the bonus token."""
        return None if self.rates is None else f"{1 + sum(self.rates) - 1:.4f}"


def _rounded_down(share: float) -> float:
    """To hundredths, so that no more is asked for than there is."""
    return math.floor(100 * share) / 100


class _Changed:
    """Limits that are not the engine's own, by their names; the others are None."""

    def __init__(self, limits: StepLimits | None, usual: StepLimits | None) -> None:
        self._limits, self._usual = limits, usual

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._limits, name, None)
        return value if value and value != getattr(self._usual, name, None) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A server's command line; fields as of `Export`."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    draft_server: tuple[str, ...] = ()
    configuration: Mapping[str, Any] = field(default_factory=dict)
    schedule: tuple[LengthRange, ...] = ()
    not_expressed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def server_command(engine: Engine, served: ServerSettings) -> Command:
    """Options, variables and files of the engine's server, and what to know of them.

    FieldError: for an engine that needs no command.
    """
    words = engine.command
    if words is None:
        raise FieldError("engine", engine.name, "it is no other engine's server")
    files: dict[str, str] = {}
    if served.schedule and engine.schedule is not None:
        value = engine.schedule.write(served.schedule)
        if name := engine.schedule.file:
            files[name], value = str(value), name
        served = replace(served, written_schedule=value)
    speculation, placed = _speculation(engine, served), dict[str, Any]()
    method = None if served.method is None else engine.methods[served.method]
    if words.file:
        settings = _filled(words.settings, served) | (_filled(method.settings, served) if method else {})
        settings |= {words.speculation: speculation} if speculation else {}
        if settings:
            files[words.file] = _yaml(settings)
            served = replace(served, file=words.file)
    elif words.speculation:
        placed = {words.speculation: json.dumps(speculation)} if speculation else {}
    else:
        placed = speculation = {name: value if value is True else str(value) for name, value in speculation.items()}
    options = _filled(method.options, served) if method else {}
    variables = engine.imitation.environment if served.rates is not None and engine.imitation else {}
    return Command(
        arguments=(
            *(str(_value(word, served)) for word in words.program),
            *_flags(_filled(words.options, served) | placed | options),
        ),
        environment={name: str(value) for name, value in _filled(variables, served).items()},
        files=files,
        configuration=speculation,
        schedule=served.schedule,
        not_expressed=tuple(_not_expressed(engine, words, served)),
        remarks=tuple(_remarks(engine, words, served)),
    )


def local_arguments(
    engine: Engine,
    arguments: Sequence[str],
    *,
    target: str,
    device: str,
    port: int,
    python: str | None = None,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """An exported command's arguments, for a server at a port of this machine.

    python: of the engine's own environment; its program is found in PATH without. options: further words, which may
    change those before them.

    FieldError: if the engine is no Python program.
    """
    words = engine.command
    assert words is not None, "exported commands have words"
    program, given = arguments[: len(words.program)], arguments[len(words.program) :]
    if python is not None:
        if not words.module:
            raise FieldError("python", python, f"{engine.full_name} is no Python program")
        program = (python, *(target if word is Value.TARGET else str(word) for word in words.module))
    local = words.cpu_options if device == "cpu" else ()
    return (*program, *given, *local, "--host", "127.0.0.1", "--port", str(port), *options)


def _speculation(engine: Engine, served: ServerSettings) -> dict[str, Any]:
    if served.method is None:
        return {}
    found = _filled(engine.methods[served.method].words, served)
    if served.schedule and engine.schedule is not None:
        found |= _filled(engine.schedule.words, served)
    if served.rates is not None and engine.imitation is not None:
        found |= _filled(engine.imitation.words, served)
        found |= _filled(engine.imitation.draft_words, served) if served.draft is not None else {}
    return found


def _not_expressed(engine: Engine, words: CommandWords, served: ServerSettings) -> Iterator[str]:
    if served.rates is not None and engine.imitation is not None and engine.imitation.lost:
        yield engine.imitation.lost
    if not words.quantises:
        for role, model in ((Role.TARGET, served.target), (Role.DRAFT, served.draft)):
            if model is not None and served.quantisation.get(role) == "fp8":
                yield _FP8.format(engine=engine.full_name, model=model)


def _remarks(engine: Engine, words: CommandWords, served: ServerSettings) -> Iterator[str]:
    method = None if served.method is None else engine.methods[served.method]
    schedule = engine.schedule if served.schedule else None
    sentences = (
        words.remark,
        method.remark if method else "",
        engine.tree_remark if served.policy.num_candidates > 1 else "",
        schedule.remark if schedule else "",
    )
    yield from filter(None, sentences)


def _filled(words: Words, served: ServerSettings) -> dict[str, Any]:
    """The words that the plan has a value for."""
    found = {
        word: _filled(value, served) or None if isinstance(value, Mapping) else _value(value, served)
        for word, value in words.items()
    }
    return {word: value for word, value in found.items() if value is not None}


def _value(word: object, served: ServerSettings) -> object:
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
