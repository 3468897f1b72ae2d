"""Samples of questions in simulated time: their programs, performed on simulated servers."""

from collections.abc import Callable, Generator, Mapping
from typing import Any, cast

import simpy

from swiftspec.policies.effects import Role
from swiftspec.studies.atts.document import AttsOptions, AttsQuestion, AttsSample, Ending
from swiftspec.studies.atts.log import SampleLog
from swiftspec.studies.atts.samples import Effect, NextTurn, Score, Select, Write, Written, sample
from swiftspec.studies.atts.scripts import QuestionScript, SampleScript
from swiftspec.studies.atts.selection import Answers, Selection
from swiftspec.studies.atts.simulated_servers import Events, SimulatedServer

Servers = Callable[[simpy.Environment], Mapping[Role, SimulatedServer]]


def simulate(script: QuestionScript, selection: Selection, options: AttsOptions, servers: Servers) -> AttsQuestion:
    """A question on servers that serve nobody else; all its samples begin at once."""
    env = simpy.Environment()
    samples = _Samples(env, script, selection, options, servers(env))
    ended = [env.process(samples.run(number)) for number in range(options.num_samples)]
    env.run(env.all_of(ended))
    return AttsQuestion(
        question_id=script.question_id,
        prompt_tokens=script.prompt_tokens,
        samples=tuple(cast(AttsSample, process.value) for process in ended),
    )


class _Samples:
    """The samples of one question, and what each of them waits for."""

    def __init__(
        self,
        env: simpy.Environment,
        script: QuestionScript,
        selection: Selection,
        options: AttsOptions,
        servers: Mapping[Role, SimulatedServer],
    ) -> None:
        self._env, self._script, self._options = env, script, options
        self._selection = selection
        self._servers = servers
        self._places = {role: simpy.Resource(env, options.calls(role)) for role in servers}
        self._waiting: dict[int, simpy.Event] = {}

    def run(self, number: int) -> Generator[simpy.Event, Any, AttsSample]:
        """One sample, to its end."""
        text = _Text(self._script.samples[number], self._script.prompt_tokens)
        program, log = sample(self._options), SampleLog()
        answer: Any = None
        try:
            while True:
                effect = program.send(answer)
                began_s = self._env.now
                answer = yield from self._perform(number, text, effect)
                log.note(effect, answer, began_s, self._env.now)
        except StopIteration as ended:
            ending: Ending = ended.value
        self._let_go(self._selection.leave(number))
        return log.sample(ending, self._env.now)

    def _perform(self, number: int, text: "_Text", effect: Effect) -> Generator[simpy.Event, Any, Any]:
        match effect:
            case Write(role):
                prompt_tokens, written = text.num_tokens, text.write(role)
                if written.num_tokens:
                    yield from self._ask(role, self._servers[role].write(prompt_tokens, written.num_tokens))
                return written
            case Score():
                yield from self._ask(Role.TARGET, self._servers[Role.TARGET].score(text.num_tokens))
                return text.score
            case Select(score):
                return (yield from self._go_on(number, lambda: self._selection.select(number, score)))
            case NextTurn():
                return (yield from self._go_on(number, lambda: self._selection.next_turn(number)))

    def _ask(self, role: Role, request: Events) -> Events:
        with self._places[role].request() as place:
            yield place
            yield from request

    def _go_on(self, number: int, ask: Callable[[], Answers]) -> Generator[simpy.Event, Any, bool | None]:
        """Ask the selection, and wait until it lets this sample go on."""
        waiting = self._waiting[number] = self._env.event()
        self._let_go(ask())
        answer: bool | None = yield waiting
        return answer

    def _let_go(self, answers: Answers) -> None:
        for number, answer in answers.items():
            self._waiting.pop(number).succeed(answer)


class _Text:
    """The text of a sample, in numbers."""

    def __init__(self, script: SampleScript, prompt_tokens: int) -> None:
        self.num_tokens = prompt_tokens
        self._script = script
        self._turn = -1

    def write(self, role: Role) -> Written:
        """Continue it as the script says; nothing after its last turn."""
        turns = self._script.turns
        self._turn += role is Role.DRAFT
        if self._turn >= len(turns):
            return Written(0)
        turn = turns[self._turn]
        num_tokens = turn.draft_tokens if role is Role.DRAFT else turn.target_tokens
        self.num_tokens += num_tokens
        is_last = self._turn == len(turns) - 1 and self._script.ending is not Ending.TURNS
        return Written(num_tokens, self._script.ending if is_last else None)

    @property
    def score(self) -> float:
        """Of its last segment."""
        return self._script.turns[self._turn].score
