"""Changes in an engine's own words."""

from __future__ import annotations

import json
from collections.abc import Sequence

from swiftspec.engines import Engine
from swiftspec.engines.words import LengthRange, Method, Value

__all__ = ["length_setting", "limit_setting", "schedule_setting"]


def length_setting(engine: Engine, method: Method, length: int, *, levels: int) -> str:
    """Words that set a draft length: `num_speculative_tokens=2`; without drafts, the option that is left out."""
    words = engine.methods[method].words if method in engine.methods else {}
    if not length:
        option = engine.command.speculation if engine.command else ""
        option = option or next((word for word in words if word.startswith("--")), "")
        return f"without {option}" if option else "without drafts"
    values = {Value.DRAFT_TOKENS: length, Value.VERIFIED_ROWS: length + 1, Value.LEVELS: levels}
    filled = ((word, values[value]) for word, value in words.items() if isinstance(value, Value) and value in values)
    return " ".join(f"{word} {value}" if word.startswith("--") else f"{word}={value}" for word, value in filled)


def limit_setting(engine: Engine, field: str) -> str:
    """The engine's word for a field of its limits; empty if it has none."""
    return next((word for word, of in engine.words.items() if of == field), "")


def schedule_setting(engine: Engine, method: Method, schedule: Sequence[LengthRange]) -> str:
    """Words that set draft lengths by requests at once; empty without any, or if the engine has no such words."""
    words = engine.schedule
    if not schedule or words is None or method not in words.methods:
        return ""
    written = words.write(schedule)
    text = written if isinstance(written, str) else json.dumps(written)
    named = next((word for word, value in words.words.items() if value is Value.SCHEDULE), "")
    return f"{words.file or named}: {' '.join(text.split())}"
