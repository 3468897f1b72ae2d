"""Chat templates rendered in a process of their own: they are programs that may compute for ever, or take all memory.

The process is started when it is first needed, and again after a template has ended it. Conversations are rendered one
after the other.
"""

import asyncio
import json
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from swiftspec.files.reading import parse_foreign_json
from swiftspec.interpreters import interpreter_command
from swiftspec.server.chat_template import LENGTH, WITHIN_S, TemplateSource

_ENDS_WITHIN_S = 1.0


class Renderer:
    """Renders conversations by templates, which are numbered in their order."""

    def __init__(self, templates: Sequence[TemplateSource]) -> None:
        self._templates = [asdict(each) for each in templates]
        self._process: Process | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start the process. ValueError if one of the templates is none."""
        async with self._turn:
            await self._running()

    async def render(self, number: int, conversation: Mapping[str, Any]) -> str:
        """The text of a conversation. ValueError, one sentence, if the template refuses it or does not end in time."""

        async def rendered() -> str:
            async with self._turn:
                return await self._exchange(await self._running(), {"number": number, "conversation": conversation})

        # A caller who goes away would leave an answer that the next one would take for its own.
        return await asyncio.shield(asyncio.ensure_future(rendered()))

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()
            await _end(process)

    async def _running(self) -> Process:
        if self._process is None:
            command = interpreter_command("swiftspec.server.chat_template")
            # A group of its own: what a terminal sends to the server's group is the server's to handle.
            self._process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, process_group=0)
            await self._exchange(self._process, {"templates": self._templates})
        return self._process

    async def _exchange(self, process: Process, asked: Mapping[str, Any]) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        content = json.dumps(asked).encode()
        try:
            process.stdin.write(LENGTH.pack(len(content)) + content)
            await process.stdin.drain()
            head = await process.stdout.readexactly(LENGTH.size)
            answer = parse_foreign_json(await process.stdout.readexactly(*LENGTH.unpack(head)))
        except (OSError, EOFError):
            self._process = None
            is_late = await _end(process) == -signal.SIGALRM
            why = f"does not end within {WITHIN_S:g} s" if is_late else "ended the process that renders it"
            raise ValueError(f"messages: the model's chat template {why}") from None
        if "error" in answer:
            raise ValueError(answer["error"])
        return str(answer["text"])


async def _end(process: Process) -> int:
    """The exit code of a process that ends by itself, or is killed.

    It is not killed at once: to kill one that has ended, subprocess asks for its exit code, which asyncio then misses.
    """
    try:
        return await asyncio.wait_for(process.wait(), _ENDS_WITHIN_S)
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return await process.wait()
