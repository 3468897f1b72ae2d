"""Questions to several engines in turn."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tools.real_size.engine import Engine, Question
from tools.real_size.peers import Start

QUESTIONS: Mapping[str, Question] = MappingProxyType(
    {
        "prompt of 512": Question(1, 512, 1),
        "prompt of 2048": Question(1, 2048, 1),
        "one row": Question(1, 256, 17),
        "eight rows": Question(8, 64, 17),
    }
)


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds of each engine in each round, by its name: of the whole prompt, or of a step."""

    question: str
    seconds: Mapping[str, Sequence[float]]

    def ratios(self) -> Mapping[str, float]:
        """How many times as long the last engine takes as each of the others: the median over the rounds."""
        *others, last = self.seconds
        return {
            name: statistics.median(
                theirs / ours for ours, theirs in zip(self.seconds[name], self.seconds[last], strict=True)
            )
            for name in others
        }

    def lines(self) -> Iterator[str]:
        """The times of all engines, and of the last one in those of each of the others."""
        yield f"{self.question}: " + ", ".join(
            f"{name} {1e3 * statistics.median(seconds):.1f} ms" for name, seconds in self.seconds.items()
        )
        for name, ratio in self.ratios().items():
            yield f"    {ratio:.2f} times as long as {name}"

    def as_json(self) -> dict[str, Any]:
        return {"question": self.question, "seconds": {name: list(each) for name, each in self.seconds.items()}}


def compare(starts: Sequence[Start], *, rounds: int) -> Iterator[Result]:
    """The answers to all questions, of engines that all hold their models at once."""
    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(start.name, start.command, start.variables)) for start in starts]
        for name, question in QUESTIONS.items():
            yield _asked(engines, name, question, rounds)


def _asked(engines: Sequence[Engine], name: str, question: Question, rounds: int) -> Result:
    def seconds(engine: Engine) -> float:
        times = engine.ask(question)
        return times.step_s or times.prompt_s

    for engine in engines:
        seconds(engine)  # the first answer has what is made once
    turns = [[seconds(engine) for engine in engines] for _ in range(rounds)]
    columns = zip(*turns, strict=True)
    return Result(name, {engine.name: column for engine, column in zip(engines, columns, strict=True)})
