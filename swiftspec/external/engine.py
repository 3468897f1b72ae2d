"""An engine that this machine has, and the servers that it starts."""

import os
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from swiftspec.engines import Engine
from swiftspec.engines.words import Value
from swiftspec.errors import FieldError
from swiftspec.export.command import Command, Export
from swiftspec.external.server import RunningServer, ServerCommand, draft_server, started
from swiftspec.files.writing import write_output
from swiftspec.machine import free_port
from swiftspec.progress import Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHere:
    """An engine that is started on this machine."""

    engine: Engine
    device: str = "cpu"  # cpu or cuda
    python: str | None = None  # of the engine's environment; its program is in PATH without
    options: Sequence[str] = ()  # of its command, in its own words; they may change those before them
    start_s: float = 900.0  # longest start

    def cores(self, server: RunningServer) -> Set[int]:
        """Cores that a server of it computes on; none where a GPU does."""
        return server.group.cores if self.device == "cpu" else frozenset()

    @contextmanager
    def server(
        self,
        written: Command | Export,
        *,
        target: str,
        log: Path,
        stage: str,
        stages: Stages,
        port: int | None = None,
    ) -> Iterator[RunningServer]:
        """A server that serves within the context.

        written: its command as it is exported; a draft server that it names is started before it. target: the model
        that it names. log: its files are written beside it. stage: its start, of `stages`. port: a free one if not
        given.

        ServerError: if it does not start.
        """
        port = port or free_port()
        for name, text in written.files.items():
            write_output(log.with_name(name), text.encode())
        placed = [str(log.with_name(word)) if word in written.files else word for word in written.arguments]
        url = f"http://127.0.0.1:{port}"
        usual = self.engine.command.cpu_environment if self.device == "cpu" and self.engine.command else {}
        unset = {name: value for name, value in usual.items() if name not in os.environ}
        command = ServerCommand(
            name=self.engine.full_name,
            arguments=self.arguments(placed, target=target, port=port),
            url=url,
            environment={**unset, **written.environment},
        )
        drafting = written.draft_server if isinstance(written, Export) else ()
        with ExitStack() as stack:
            with stages(stage) as progress:
                check = stack.enter_context(draft_server(drafting, log=log.with_suffix(".draft.log")))
                server = stack.enter_context(started(command, log=log, timeout_s=self.start_s, progress=progress))
            check()
            yield server

    def arguments(self, written: Sequence[str], *, target: str, port: int) -> tuple[str, ...]:
        """An exported command's arguments, for a server at a port. FieldError for a Python if the engine is none."""
        words = self.engine.command
        assert words is not None, "exported commands have words"
        program, given = written[: len(words.program)], written[len(words.program) :]
        if self.python is not None:
            if not words.module:
                raise FieldError("python", self.python, f"{self.engine.full_name} is no Python program")
            program = (self.python, *(target if word is Value.TARGET else str(word) for word in words.module))
        local = words.cpu_options if self.device == "cpu" else ()
        return (*program, *given, *local, "--host", "127.0.0.1", "--port", str(port), *self.options)
