"""Samples of a question on real servers: their programs, performed with asyncio."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from hashlib import blake2b
from time import perf_counter
from typing import Any, TypeVar

from swiftspec.artifacts.prompts import Prompt
from swiftspec.policies.effects import Role
from swiftspec.studies.atts.document import AttsOptions, AttsSample, Ending
from swiftspec.studies.atts.log import SampleLog
from swiftspec.studies.atts.samples import Effect, NextTurn, Score, Select, Write, Written, sample
from swiftspec.studies.atts.selection import Answers, Selection
from swiftspec.studies.atts.servers import ContextFullError, TextServer

_WARM_UP_TOKENS = 8
_Result = TypeVar("_Result")


class Driver:
    """Questions on a draft's and a target's server. To be made and used within one event loop.

    Parameters
    ----------
    servers : mapping of Role to TextServer
    options : AttsOptions
    """

    def __init__(self, servers: Mapping[Role, TextServer], options: AttsOptions) -> None:
        self.options = options
        self.servers = servers
        self.places = {role: asyncio.Semaphore(options.calls(role)) for role in servers}
        self.marker = re.compile(options.end_marker, re.DOTALL)

    async def warm_up(self, question: Prompt) -> None:
        """Ask both servers for a little: their first requests are slower."""
        with suppress(ContextFullError):
            for server in self.servers.values():
                await server.write(question.text, num_tokens=_WARM_UP_TOKENS, temperature=0.0, seed=0)
            await self.servers[Role.TARGET].score(question.text, num_characters=len(question.text))

    async def calibrate(self, question: Prompt) -> tuple[float, ...]:
        """Scores of other first segments of a question, one for each of its samples; none of those without text."""
        scores = await _together(self._calibration_score(question, n) for n in range(self.options.num_samples))
        return tuple(score for score in scores if score is not None)

    async def _calibration_score(self, question: Prompt, number: int) -> float | None:
        text = _Text(self, question, f"calibration {number}")
        with suppress(ContextFullError):
            if (await text.write(Write(Role.DRAFT, self.options.draft_tokens))).num_tokens:
                return await text.score()
        return None

    async def run(self, question: Prompt, selection: Selection) -> tuple[AttsSample, ...]:
        """All samples of a question."""
        samples = _Samples(self, question, selection)
        return tuple(await _together(samples.run(number) for number in range(self.options.num_samples)))


class _Samples:
    """The samples of one question, and what each of them waits for."""

    def __init__(self, driver: Driver, question: Prompt, selection: Selection) -> None:
        self._driver, self._question, self._selection = driver, question, selection
        self._waiting: dict[int, asyncio.Future[bool | None]] = {}
        self._start_s = perf_counter()

    @property
    def _now_s(self) -> float:
        return perf_counter() - self._start_s

    async def run(self, number: int) -> AttsSample:
        """One sample, to its end."""
        text, log = _Text(self._driver, self._question, f"sample {number}"), SampleLog()
        program = sample(self._driver.options)
        answer: Any = None
        try:
            while True:
                effect = program.send(answer)
                began_s = self._now_s
                answer = await self._perform(number, text, effect)
                log.note(effect, answer, began_s, self._now_s)
        except StopIteration as ended:
            ending: Ending = ended.value
        except ContextFullError:
            ending = Ending.CONTEXT
        ended_s = self._now_s
        self._let_go(self._selection.leave(number))
        return log.sample(ending, ended_s, text.answer)

    async def _perform(self, number: int, text: "_Text", effect: Effect) -> Any:
        match effect:
            case Write():
                return await text.write(effect)
            case Score():
                return await text.score()
            case Select(score):
                return await self._go_on(number, lambda: self._selection.select(number, score))
            case NextTurn():
                return await self._go_on(number, lambda: self._selection.next_turn(number))

    async def _go_on(self, number: int, ask: Callable[[], Answers]) -> bool | None:
        """Ask the selection, and wait until it lets this sample go on."""
        waiting: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._let_go(ask())
        return await waiting

    def _let_go(self, answers: Answers) -> None:
        for number, answer in answers.items():
            self._waiting.pop(number).set_result(answer)


class _Text:
    """The text of a sample. use: what it is for, which sets its random numbers apart."""

    def __init__(self, driver: Driver, question: Prompt, use: str) -> None:
        self.answer = ""
        self._driver, self._question, self._use = driver, question, use
        self._num_written = 0
        self._last = ""

    async def write(self, effect: Write) -> Written:
        """Have a server continue it."""
        driver, role = self._driver, effect.role
        seed = _seed(driver.options.seed, self._question.prompt_id, self._use, self._num_written)
        async with driver.places[role]:
            segment = await driver.servers[role].write(
                self._question.text + self.answer,
                num_tokens=effect.num_tokens,
                temperature=driver.options.temperature,
                seed=seed,
            )
        self._num_written += 1
        self._last = segment.text
        self.answer += segment.text
        ending = Ending.END_OF_SEQUENCE if segment.has_ended else None
        if driver.marker.search(self.answer):
            ending = Ending.MARKER
        return Written(segment.num_tokens if segment.text else 0, ending)

    async def score(self) -> float:
        """Have the target score its last segment."""
        async with self._driver.places[Role.TARGET]:
            return await self._driver.servers[Role.TARGET].score(
                self._question.text + self.answer, num_characters=len(self._last)
            )


def _seed(*parts: object) -> int:
    """A seed that any server takes."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=6).digest())


async def _together(works: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    """The results of all. If one fails the others are cancelled, and its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
