"""Verbs made from dataclasses, whose fields are their options: for typer, in the groups of the help, and in errors."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any

from typer.core import TyperGroup

from swiftspec.cli.flags import OPTION
from swiftspec.cli.settings import CONDITIONS, DRAWN, PLANNER, REPLAYED, SERVER, SIMULATOR
from swiftspec.cli.verbs import check, data, decide, measure, use
from swiftspec.errors import FieldError

# Fields whose flag has another name.
_FLAGS = {
    "backend": "--jobs",
    "clients": "--load",
    "context": "--prompt-tokens",
    "draft_quant": "--dtype",
    "format_name": "--from",
    "host_s": "--set host_ms",
    "max_devices": "--limit devices",
    "most_requests": "--set load_requests",
    "num_devices": "--devices",
    "num_jobs": "--jobs",
    "num_requests": "--requests",
    "num_samples": "--samples",
    "percentile": "--limit p",
    "quant": "--dtype",
    "settings": "--set",
    "workload": "--load",
}
_OPTIONS = {
    option.name
    for verbs in (check, data, decide, measure, use)
    for options in vars(verbs).values()
    if is_dataclass(options)
    for option in fields(options)
}
_SETTINGS = CONDITIONS.keys() | DRAWN.keys() | PLANNER.keys() | REPLAYED.keys() | SERVER.keys() | SIMULATOR.keys()


class Group(StrEnum):
    """Groups of verbs, in the order of the help."""

    MEASURE = "Measure"
    DECIDE = "Decide"
    USE = "Use"
    CHECK = "Check"
    DATA = "Data"
    MORE = "Demonstrate and study"


class VerbGroups(TyperGroup):
    """A command line whose help shows its verbs group by group: a verb names its own as the panel of its help."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # the library keeps their types to itself
        commands = {verb: self.commands[verb] for verb in self.list_commands(ctx) if not self.commands[verb].hidden}
        width = max(map(len, commands))
        for group in Group:
            rows = [
                (verb.ljust(width), command.get_short_help_str(formatter.width - width))
                for verb, command in commands.items()
                if getattr(command, "rich_help_panel", None) == group
            ]
            with formatter.section(group):
                formatter.write_dl(rows)


def command(options: type, function: str) -> Callable[..., None]:
    """A function for typer that passes its options, as one object, to a function of this package's command line.

    options: a frozen dataclass of flags. function: `module.name` in `swiftspec.cli`, imported when the verb is called,
    so that help is quick.
    """

    def verb(**given: Any) -> None:
        module, _, name = function.partition(".")
        getattr(import_module(f"swiftspec.cli.{module}"), name)(options(**given))

    verb.__doc__ = options.__doc__
    signature = Signature([_parameter(each) for each in fields(options)])
    verb.__signature__ = signature  # type: ignore[attr-defined]  # what typer reads
    return verb


def _parameter(option: Field[Any]) -> Parameter:
    kind = Annotated[option.type, option.metadata[OPTION]] if option.metadata else option.type
    default = Parameter.empty if option.default is MISSING else option.default
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def refuse(asked: Any, names: Iterable[str], why: str) -> None:
    """FieldError, with the reason, for the first of these options that is given: that is not as it usually is."""
    usual = {option.name: option.default for option in fields(asked)}
    for name in names:
        if (value := getattr(asked, name)) != usual[name]:
            raise FieldError(name, ",".join(value) if isinstance(value, list) else value, why)


def refuse_settings(given: Mapping[str, object], why: str) -> None:
    """ValueError, with the reason, for the first of these settings."""
    for name, value in given.items():
        raise ValueError(f"--set {name} is {value}; {why}")


def flag_of(field: str) -> str:
    """The flag by which a user gives a field: `--devices`, or `--set rate`."""
    if field in _FLAGS:
        return _FLAGS[field]
    if field in _SETTINGS and field not in _OPTIONS:
        return f"--set {field}"
    return field if field.startswith("--") else f"--{field if field.startswith('set ') else field.replace('_', '-')}"
