"""A simulated device group that runs the programs of many requests: programs, steps and waits."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from swiftspec.policies.effects import Commit, Message, Poll, Program, Receive, Role
from swiftspec.scheduler.asks import Step
from swiftspec.scheduler.batching import WaitUntil
from swiftspec.scheduler.group import Group
from swiftspec.simulator.process import DeviceGroup, Events, RequestPart
from swiftspec.timing.timeline import Phase, Span


class ComputedStep(NamedTuple):
    """A forward of a device group: of which model, of how many requests and rows, and when."""

    role: Role
    group: int
    phase: Phase
    model: Role
    num_requests: int
    num_rows: int
    start_s: float
    end_s: float


class Owner(Protocol):
    """Whose request a program serves."""

    def note_commit(self, program: int, tokens: tuple[int, ...]) -> None:
        """Tokens were committed. Programs may be removed meanwhile, this one, too."""

    def note_end(self, program: int, group: "ServingGroup", spans: list[Span]) -> None:
        """A program has ended."""


class ServingGroup:
    """A device group and the programs on it, of one replica or, where drafts are shared, of several."""

    def __init__(self, device: DeviceGroup, group: Group, note_step: Callable[[ComputedStep], None]) -> None:
        self.device = device
        self._group = group
        self._note_step = note_step
        self._owners: dict[int, Owner] = {}
        self._env = device.env
        self._parts: dict[int, RequestPart] = {}
        self._waiting_since_s: dict[int, float] = {}
        self._num_seen = 0  # messages that had arrived when those that wait looked for theirs
        self._has_deadlines = False  # whether one of them has ever waited for a limited time
        self._host_scale = 1.0  # of host times, since the last step: requests that shared it share them, too

    def __len__(self) -> int:
        """Requests whose programs run here."""
        return len(self._parts)

    def add(
        self,
        program: int,
        generator: Program,
        part: RequestPart,
        owner: Owner,
        *,
        is_elastic: bool,
        tpot_s: float | None,
    ) -> None:
        """Begin a request's part. tpot_s: its limit on the time per token."""
        self._parts[program], self._owners[program] = part, owner
        self._group.add(program, generator, is_elastic=is_elastic, tpot_s=tpot_s)
        self.device.is_idle = False
        self.device.notify()

    def remove(self, program: int) -> list[Span]:
        """End a request's part; its spans so far."""
        self._group.remove(program)
        part = self._parts.pop(program, None)
        return part.spans if part else []

    def serve(self) -> Events:
        """The SimPy process: programs, steps and waits, for as long as anything happens."""
        while True:
            while self._take_messages() or self._group.has_ready:
                for program, answer in self._group.ready():
                    yield from self._proceed(program, answer)
            choice = self._group.choose(self._env.now)
            if isinstance(choice, Step):
                yield from self._compute(choice)
            else:
                yield from self._wait(choice)

    def _take_messages(self) -> bool:
        """Let the programs go on whose message has come, or whose time is over; whether there are any."""
        now_s = self._env.now
        arrived: list[tuple[int, Message | None]] = []
        if self._num_seen == self.device.num_arrived and not self._has_deadlines:
            return False  # whoever waits has looked before
        self._num_seen = self.device.num_arrived
        for program, effect in self._group.receiving.items():
            message = self._parts[program].poll(effect.peer)
            since_s = self._waiting_since_s[program]
            if message is not None or (effect.within_s is not None and now_s >= since_s + effect.within_s):
                self._parts[program].note(Phase.WAIT, self.device.role, since_s)
                arrived.append((program, message))
        for program, message in arrived:
            self._group.unblock(program, message)
        return bool(arrived)

    def _proceed(self, program: int, answer: Any) -> Events:
        """A program's effects until it asks for a forward, waits for a message, or ends."""
        part, group, env = self._parts[program], self._group, self._env
        while (effect := group.resume(program, answer, now_s=env.now)) is not None:
            if isinstance(effect, Receive):
                message = part.poll(effect.peer)
                if message is None:
                    group.block(program, effect)
                    self._has_deadlines = self._has_deadlines or effect.within_s is not None
                    self._waiting_since_s[program] = env.now
                    return
                part.note(Phase.WAIT, self.device.role, env.now)
                answer = message
                continue
            if type(effect) is Poll:
                # An asynchronous draft looks for its verdict before every forward.
                answer = part.complete(effect, env.now)
                continue
            start_s = env.now
            host_s = self._host_scale * part.begin(effect)
            if host_s:
                yield env.timeout(host_s)
            answer = part.complete(effect, start_s)
            if isinstance(effect, Commit) and program in group:
                self._owners[program].note_commit(program, effect.tokens)
            if program not in group:  # it gave way meanwhile
                return
        if program not in group:
            self._owners[program].note_end(program, self, self._parts.pop(program).spans)

    def _compute(self, step: Step) -> Events:
        env, device = self._env, self.device
        effects = self._group.begin(step, now_s=env.now)
        forms = [(program, effect, *self._parts[program].form(effect)) for program, effect in effects]
        # Before any wait, during which requests may give way.
        attended = sum([rows * self._parts[program].oracle.context(step.model) for program, _, _, _, rows in forms])
        self._host_scale = device.meter.together(len(forms))
        host_s = self._host_scale * sum([device.meter.host(phase, rows) for _, _, phase, _, rows in forms])
        if host_s:
            yield env.timeout(host_s)
        start_s = env.now
        # Prompts are priced as such only where nothing else is computed with them.
        phase = next((phase for _, _, phase, _, _ in forms if phase is not Phase.PREFILL), Phase.PREFILL)
        context = round(attended / step.num_rows)
        yield from device.compute(phase, step.model, rows=step.num_rows, context=context, sequences=len(forms))
        answers = {}
        for program, effect, its_phase, model, rows in forms:
            if (part := self._parts.get(program)) is not None:
                part.note(its_phase, model, start_s, rows=rows)
                answers[program] = part.answer(effect)
        self._group.finish(step, answers)
        self._note_step(
            ComputedStep(device.role, device.group, phase, step.model, len(forms), step.num_rows, start_s, env.now)
        )

    def _wait(self, choice: WaitUntil | None) -> Events:
        """Wait for a message, a request, or the earliest time that something waits for."""
        env, device = self._env, self.device
        ends_s = [
            self._waiting_since_s[program] + effect.within_s
            for program, effect in self._group.receiving.items()
            if effect.within_s is not None
        ]
        if choice is not None:
            ends_s.append(choice.time_s)
        device.is_idle = True
        changed = device.awaited = env.event()
        if ends_s:
            yield changed | env.timeout(max(0.0, min(ends_s) - env.now))
        else:
            yield changed
        device.awaited = None
        device.is_idle = False
