"""The command of a served plan in an engine's words, for all engines."""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from swiftspec.artifacts.plan import GroupMemory
from swiftspec.engines import Engine
from swiftspec.engines.description import StepLimits
from swiftspec.engines.words import CommandWords, ImitationWords, LengthRange, Method, MethodWords, Value, Words
from swiftspec.errors import FieldError
from swiftspec.files.document import Facts
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.policies.trees.eagle2 import Eagle2Tree


class Export(Facts):
    """Command line of a server of another engine.

    engine, full_name: its name, and that in sentences.
    version: release that the options are of.
    planned: the plan's candidate that was to be exported, `swiftspec 5+3 (verify_rows=8)`.
    planned_tokens_per_s: its predicted speed.
    candidate: what the command runs; another one if the engine cannot express the planned one.
    tokens_per_s: predicted speed of that; None if the plan has no prediction of it.
    num_replicas: servers that the command has to start, of a fleet.
    basis: origin of `candidate`, a sentence; empty if it is the planned one.
    draft_server: the command of the draft server that it asks; empty without one.
    files: files that the command reads, by their names in its folder, and their text.
    configuration: the engine's own configuration of speculative decoding; empty without any.
    schedule: draft tokens by requests at once, as exported; empty if their number is fixed.
    not_expressed: what the plan has and the command has not, a sentence each.
    remarks: what else to know, a sentence each.
    """

    engine: str
    full_name: str
    version: str
    planned: str
    planned_tokens_per_s: float = Field(gt=0)
    candidate: str
    tokens_per_s: float | None = Field(default=None, gt=0)
    num_replicas: int = Field(default=1, ge=1)
    basis: str = ""
    arguments: tuple[str, ...] = Field(min_length=1)
    environment: dict[str, str] = Field(default_factory=dict)
    draft_server: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    configuration: dict[str, Any] = Field(default_factory=dict)
    schedule: tuple[LengthRange, ...] = ()
    not_expressed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def is_other_plan(self) -> bool:
        """Whether the command runs something else than was planned."""
        return bool(self.basis)

    @property
    def command(self) -> str:
        """The command for a shell, an option a line; behind that of a draft server, if there is one."""
        before = [_line_by_line(self.draft_server) + " &"] if self.draft_server else []
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return "\n".join([*before, _line_by_line(self.arguments, variables)])

    @property
    def script(self) -> str:
        """A shell script that writes the files and starts the server."""
        lines = ["#!/bin/sh", f"# {self.candidate} for {self.full_name} {self.version}"]
        if self.num_replicas > 1:
            lines.append(f"# One of {self.num_replicas} equal servers: run it once for each, on devices of its own.")
        lines += [f"# Not expressed: {sentence}" for sentence in self.not_expressed]
        lines.append("set -e")
        for name, text in self.files.items():
            lines += [f"cat > {shlex.quote(name)} <<'END_OF_FILE'", text.rstrip("\n"), "END_OF_FILE"]
        return "\n".join([*lines, self.command]) + "\n"


def _line_by_line(words: Sequence[str], before: Sequence[str] = ()) -> str:
    begin = next((at for at, word in enumerate(words) if word.startswith("--")), len(words))
    lines = [*before, shlex.join(words[:begin])]
    for word in words[begin:]:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n    ".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Models, devices and policy of a server. None is for none.

    target: repository or directory.
    draft: the same of the draft; None if the policy has none, or it comes with the target.
    method: how tokens are drafted; None if none are.
    policy: one that the engine can run.
    layout: how the devices share the target.
    draft_degree: devices that divide the draft of a rank.
    dtype: of weights that are not quantised, `bfloat16`; the checkpoint's own if None.
    quantisation: `fp8`, `int8` or `int4` by role; roles without any are left out.
    schedule: draft tokens by requests at once; empty if their number is fixed.
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
    def num_draft_tokens(self) -> int:
        """Of a round, at most."""
        longest = max((each.num_draft_tokens for each in self.schedule), default=0)
        return longest or self.policy.target_rows - 1


def _values(served: ServerSettings) -> dict[Value, object]:
    """What the words of engines stand for; None for nothing, and True for a flag. No file is written yet."""
    policy, layout, limits, rates = served.policy, served.layout, served.limits, served.rates
    tree = policy if isinstance(policy, Eagle2Tree) else None
    fp8 = {role: "fp8" if served.quantisation.get(role) == "fp8" else None for role in Role}
    # A draft inherits the target's format unless it is told another one.
    inherits = "unquant" if fp8[Role.TARGET] and Role.DRAFT not in served.quantisation else None
    has_cache = bool(limits.prefix_block) if limits else None
    stays_behind = limits and served.usual and served.usual.runs_ahead > limits.runs_ahead
    found: dict[Value, object] = {
        Value.TARGET: served.target,
        Value.DRAFT: served.draft,
        Value.DEGREE: layout.num_devices,
        Value.RANK_DEGREE: layout.tp,
        Value.RANKS: layout.dp if layout.dp > 1 else None,
        Value.HAS_RANKS: layout.dp > 1 or None,
        Value.WHOLE_EXPERTS: layout.ep > 1 or None,
        Value.EXPERT_DEGREE: layout.ep if layout.ep > 1 else None,
        Value.EQUAL_PARTS: ",".join(["1"] * layout.num_devices),
        Value.DRAFT_DEGREE: served.draft_degree,
        Value.DTYPE: served.dtype,
        Value.TARGET_FP8: fp8[Role.TARGET],
        Value.DRAFT_FP8: fp8[Role.DRAFT],
        Value.OTHER_DRAFT_FORMAT: "fp8" if fp8[Role.DRAFT] and not fp8[Role.TARGET] else inherits,
        Value.MAX_RUNNING: served.max_running,
        Value.MAX_RUNNING_OF_RANK: None if served.max_running is None else -(-served.max_running // layout.dp),
        Value.STEP_TOKENS: limits.step_tokens if limits and served.is_loaded else None,
        Value.MAX_CONTEXT: served.max_context,
        Value.KV_DTYPE: served.kv_dtype,
        Value.PREFIX_CACHE: has_cache or None,
        Value.NO_PREFIX_CACHE: has_cache is False or None,
        Value.REUSES_BLOCKS: has_cache,
        Value.BLOCK: _changed(served, "prefix_block"),
        Value.CAPTURED: _changed(served, "captured_tokens"),
        Value.PROMPT_WAIT: _changed(served, "prompt_wait"),
        Value.WAITS: bool(_changed(served, "prompt_wait")) or None,
        Value.STEP_BY_STEP: True if stays_behind else None,
        Value.DRAFT_TOKENS: served.num_draft_tokens,
        Value.VERIFIED_ROWS: policy.target_rows,
        Value.LEVELS: tree.depth + 1 if tree else policy.target_rows - 1,  # draft forwards of a round
        Value.WIDTH: tree.top_k if tree else 1,
        Value.RATES: None if rates is None else [round(rate, 4) for rate in rates],
        Value.ROUND_TOKENS: None if rates is None else f"{1 + sum(rates):.4f}",
        Value.ACCEPTED_TOKENS: None if rates is None else f"{1 + sum(rates) - 1:.4f}",
        Value.DRAFTER_SETTINGS: json.dumps({"swiftspec": {"address": served.address}}) if served.address else None,
        Value.SCHEDULE: None,
        Value.FILE: None,
        **_shares(served.memory, served.device_bytes),
    }
    if isinstance(policy, PromptLookup):
        found[Value.LONGEST_MATCH] = policy.longest_match
        found[Value.MATCH_AND_DRAFT] = policy.longest_match + policy.num_draft_tokens
    if isinstance(policy, SuffixDecoding):
        found[Value.SUFFIX_DEPTH] = policy.max_tree_depth
        found[Value.SUFFIX_FACTOR] = policy.max_spec_factor
        found[Value.SUFFIX_PROBABILITY] = policy.min_token_prob
    return found


def _changed(served: ServerSettings, field_name: str) -> object:
    """A limit of the user's, if it is not the engine's own."""
    value = getattr(served.limits, field_name, None)
    return value if value and value != getattr(served.usual, field_name, None) else None


def _shares(memory: GroupMemory | None, device_bytes: int) -> dict[Value, float | None]:
    """Shares of a device's memory; most to hundredths below, so that no more is asked for than there is."""
    if memory is None:
        return dict.fromkeys((Value.MEMORY_SHARE, Value.STATIC_SHARE, Value.FREE_SHARE))
    static = (memory.usable_bytes - memory.reserve_bytes) / device_bytes
    free = (memory.usable_bytes - memory.loaded_bytes) / (device_bytes - memory.loaded_bytes)
    return {
        Value.MEMORY_SHARE: round(memory.usable_bytes / device_bytes, 3),  # of all that a server takes
        Value.STATIC_SHARE: math.floor(100 * static) / 100,  # of weights and cache
        Value.FREE_SHARE: math.floor(100 * free) / 100,  # of the cache, in what weights, graphs and workspace leave
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A server's command line; fields as of `Export`."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    not_expressed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def server_command(engine: Engine, served: ServerSettings) -> Command:
    """Options, variables and files of the engine's server, and what to know of them.

    FieldError: for an engine that needs no command.
    """
    words = engine.command
    if words is None:
        raise FieldError("engine", engine.name, "it is no other engine's server")
    values, files = _values(served), dict[str, str]()
    schedule = engine.schedule if served.schedule else None
    if schedule is not None:
        written = schedule.write(served.schedule)
        values[Value.SCHEDULE] = schedule.file or written
        if schedule.file:
            files[schedule.file] = str(written)
    method = engine.methods[served.method] if served.method else MethodWords(words={})
    imitation = engine.imitation if served.rates is not None and engine.imitation else ImitationWords()
    speculation, placed = dict[str, Any](), dict[str, Any]()
    if served.method:
        drafted = imitation.draft_words if served.draft is not None else {}
        parts = (method.words, schedule.words if schedule else {}, imitation.words, drafted)
        speculation = {word: value for part in parts for word, value in _filled(part, values).items()}
    if words.file:
        settings = _filled(words.settings, values) | _filled(method.settings, values)
        settings |= {words.speculation: speculation} if speculation else {}
        if settings:
            files[words.file] = _yaml(settings)
            values[Value.FILE] = words.file
    elif words.speculation:
        placed = {words.speculation: json.dumps(speculation)} if speculation else {}
    else:
        placed = speculation = {name: value if value is True else str(value) for name, value in speculation.items()}
    tree = engine.tree_remark if served.policy.num_candidates > 1 else ""
    return Command(
        arguments=(
            *(str(_value(word, values)) for word in words.program),
            *_flags(_filled(words.options, values) | placed | _filled(method.options, values)),
        ),
        environment={name: str(value) for name, value in _filled(imitation.environment, values).items()},
        files=files,
        configuration=speculation,
        not_expressed=tuple(filter(None, (imitation.lost, *_unquantised(engine, words, served)))),
        remarks=tuple(filter(None, (words.remark, method.remark, tree, schedule.remark if schedule else ""))),
    )


def _unquantised(engine: Engine, words: CommandWords, served: ServerSettings) -> Iterator[str]:
    for role, model in ((Role.TARGET, served.target), (Role.DRAFT, served.draft)):
        if model is not None and served.quantisation.get(role) == "fp8" and not words.quantises:
            name = engine.full_name
            yield f"Weights in fp8: {name} reads them from the checkpoint; name one in fp8 in place of {model}."


def _filled(words: Words, values: Mapping[Value, object]) -> dict[str, Any]:
    """The words that the plan has a value for."""
    found = {
        word: _filled(value, values) or None if isinstance(value, Mapping) else _value(value, values)
        for word, value in words.items()
    }
    return {word: value for word, value in found.items() if value is not None}


def _value(word: object, values: Mapping[Value, object]) -> object:
    return values[word] if isinstance(word, Value) else word


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
