"""An engine that this machine has, and the servers that it starts."""

import os
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from swiftspec.engines import Engine
from swiftspec.export.command import Command, Export, local_arguments
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
    options: Sequence[str] = field(default_factory=tuple)  # of its command, in its own words
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
        local = local_arguments(
            self.engine,
            placed,
            target=target,
            device=self.device,
            port=port,
            python=self.python,
            options=self.options,
        )
        url = f"http://127.0.0.1:{port}"
        usual = self.engine.command.cpu_environment if self.device == "cpu" and self.engine.command else {}
        unset = {name: value for name, value in usual.items() if name not in os.environ}
        command = ServerCommand(
            name=self.engine.full_name, arguments=local, url=url, environment={**unset, **written.environment}
        )
        drafting = written.draft_server if isinstance(written, Export) else ()
        with ExitStack() as stack:
            with stages(stage) as progress:
                check = stack.enter_context(draft_server(drafting, log=log.with_suffix(".draft.log")))
                server = stack.enter_context(started(command, log=log, timeout_s=self.start_s, progress=progress))
            check()
            yield server
