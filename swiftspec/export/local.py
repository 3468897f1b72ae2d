"""Commands of engines that start on this machine."""

from collections.abc import Sequence

from swiftspec.engines import Engine
from swiftspec.engines.words import Value
from swiftspec.errors import FieldError
from swiftspec.export.command import Command, ServerSettings, written

__all__ = ["local_arguments", "server_command"]


def server_command(engine: Engine, settings: ServerSettings) -> Command:
    """The command of a server. FieldError for an engine that needs none."""
    if engine.command is None:
        raise FieldError("engine", engine.name, "it is no other engine's server")
    return written(engine, engine.command, settings)


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
