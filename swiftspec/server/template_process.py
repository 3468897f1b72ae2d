"""The process of a `Renderer`, which compiles and renders chat templates.

Messages in either direction are JSON after four bytes of length. First come templates, then conversations. Each message
is answered by `{"text": ..}`, or by `{"error": ..}` with a sentence. A template that computes for too long ends the
process.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

from swiftspec.files.reading import parse_foreign_json
from swiftspec.server.chat_template import ChatTemplate, TemplateSource

__all__ = ["LENGTH", "WITHIN_S", "main"]

LENGTH = struct.Struct("!I")
WITHIN_S = 5.0  # of an answer
_MOST_MEMORY_BYTES = 1 << 30
_MOST_CHARACTERS = 8 << 20  # of a text


def main() -> None:
    """Answer until the input ends."""
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
        text = templates[asked["number"]].render(asked["messages"], asked["arguments"])
    except ValueError as error:
        return {"error": str(error)}
    if len(text) > _MOST_CHARACTERS:
        return {"error": f"messages: the chat template makes {len(text)} characters of them, over {_MOST_CHARACTERS}"}
    return {"text": text}
