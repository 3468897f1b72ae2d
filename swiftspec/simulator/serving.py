"""Simulation of many requests at once: the scheduler's groups run role programs on simulated devices.

A step costs what a forward of as many rows costs, at the mean context of its rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import simpy

from swiftspec.artifacts.steps import Latencies
from swiftspec.artifacts.timeline import Phase, Span, Timeline
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Commit, Message, Program, Receive, Role
from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.asks import Step
from swiftspec.scheduler.batching import BatchLimits, WaitUntil
from swiftspec.scheduler.group import Group
from swiftspec.simulator.driver import connected, device_groups, group_degrees, group_ranks
from swiftspec.simulator.latency import LatencySampler, LatencyTable
from swiftspec.simulator.oracle import CandidatePool, TraceOracle
from swiftspec.simulator.process import DeviceGroup, Events, RequestPart
from swiftspec.simulator.texts import StretchedOracle, StretchedText

__all__ = ["ComputedStep", "Job", "ServedRequest", "Serving", "ServingRun"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request to serve.

    Parameters
    ----------
    arrival_s : float
        When it comes. In a closed loop only the order counts.
    prompt_index : int
        Index of the traced prompt that its text begins with.
    prompt_tokens : int or None
        Length of its prompt, see `StretchedText`; that of the traced one if None.
    output_tokens : int
        Length of its output.
    """

    arrival_s: float = 0.0
    prompt_index: int
    prompt_tokens: int | None = None
    output_tokens: int


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


@dataclass(slots=True, kw_only=True)
class ServedRequest:
    """A job, and what became of it.

    Parameters
    ----------
    number : int
        Place in the order of arrival.
    job : Job
    text : StretchedText
    arrival_s : float
    done : simpy.Event
        Happens when it ends.

    Attributes
    ----------
    begun_s, ended_s : float or None
        When it was admitted first, and when it ended. None if it was refused.
    num_preemptions : int
    output : list of int
    """

    number: int
    job: Job
    text: StretchedText
    arrival_s: float
    done: simpy.Event
    begun_s: float | None = None
    ended_s: float | None = None
    num_preemptions: int = 0
    spans: list[Span] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    @property
    def timeline(self) -> Timeline:
        """Its spans from its arrival on, with its own rows of the steps that it shared."""
        spans = tuple(sorted(self.spans, key=lambda span: (span.start_s, span.role is Role.DRAFT, span.group)))
        return Timeline(request=str(self.job.prompt_index), start_s=self.arrival_s, spans=spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """Everything that was served, the steps of all device groups in order of time, and when the last request ended."""

    requests: tuple[ServedRequest, ...]
    steps: tuple[ComputedStep, ...]
    num_refused: int
    end_s: float


class Serving:
    """Serves jobs by one policy; as `Simulator`, whose timelines one job at a time reproduces.

    Parameters
    ----------
    latencies : Latencies
        Of a profile.
    trace : AcceptanceTrace
    policy : Policy
    degrees, ranks : mapping
        As in `simulator.driver.simulate`.
    admission : AdmissionLimits
    batch : BatchLimits
    """

    def __init__(
        self,
        latencies: Latencies,
        trace: AcceptanceTrace,
        policy: Policy,
        *,
        degrees: Mapping[Role, int],
        ranks: Mapping[Role, int] | None = None,
        admission: AdmissionLimits,
        batch: BatchLimits,
    ) -> None:
        self.policy = policy
        self.admission = admission
        self._batch = batch
        self._prices = LatencyTable(latencies)
        self._pool = CandidatePool(trace)
        self._prompts = trace.prompts
        self._degrees = group_degrees(degrees, policy)
        self._ranks = group_ranks(ranks or {}, policy)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        num_clients: int | None = None,
        seed: int = 0,
        done: Callable[[int], None] = lambda _: None,
    ) -> ServingRun:
        """Serve all jobs, from an empty machine to an empty machine.

        num_clients: a closed loop of so many clients, each of which sends its next request when its last one is done.
        done: called with the number of requests that have ended.

        Raises
        ------
        ValueError
            If a job's prompt does not exist, or it could never fit into the cache.
        """
        return _Run(self, jobs, seed=seed, done=done).served(num_clients)

    def meter(self, seed: int) -> LatencySampler:
        """Draws of latencies, for a run."""
        meter = LatencySampler(self._prices, degrees=self._degrees, ranks=self._ranks)
        meter.seed(seed, 0)
        return meter

    def new_group(self) -> Group:
        """An empty group of programs."""
        return Group(self._batch)

    def text(self, job: Job) -> StretchedText:
        """A job's prompt and output."""
        if not 0 <= job.prompt_index < len(self._prompts):
            raise ValueError(f"prompt_index is {job.prompt_index}; expected one of the trace's {len(self._prompts)}")
        return StretchedText(
            self._prompts, job.prompt_index, prompt_tokens=job.prompt_tokens, output_tokens=job.output_tokens
        )

    def oracle(self, program: int, text: StretchedText, device: DeviceGroup, seed: int) -> TraceOracle:
        """Answers for a program on a device group, from random numbers of its own."""
        rng = np.random.default_rng([seed, program, *device.stream])
        return StretchedOracle(self._pool, self._prompts, text, rng=rng)


class _Run:
    """One simulation: admission of requests, and the device groups that run their programs.

    A request that gave way begins again with another program: programs have numbers of their own.
    """

    def __init__(
        self, serving: Serving, jobs: Sequence[Job], *, seed: int, done: Callable[[int], None]
    ) -> None:
        self.env = simpy.Environment()
        self.steps: list[ComputedStep] = []
        self._serving, self._jobs, self._seed = serving, jobs, seed
        meter = serving.meter(seed)
        self._groups = [
            _SimulatedGroup(device, serving.new_group(), self)
            for device in device_groups(self.env, serving.policy, meter)
        ]
        # Where several groups verify for a draft, the draft commits.
        self._leader = self._groups[-1 if serving.policy.target_groups > 1 else 0]
        self._queue = AdmissionQueue(serving.admission)
        self._requests: list[ServedRequest] = []
        self._numbers = count()
        self._done, self._num_done = done, 0
        self._program_of: dict[int, int] = {}  # of each request that runs
        self._request_of: dict[int, int] = {}  # of each of its programs

    def served(self, num_clients: int | None) -> ServingRun:
        """Everything, to the end."""
        for group in self._groups:
            self.env.process(group.serve())
        if num_clients is None:
            self.env.process(self._arrivals())
        else:
            jobs = iter(self._jobs)
            for _ in range(num_clients):
                self.env.process(self._client(jobs))
        self.env.run()
        if self._queue.num_running or self._queue.num_waiting:
            raise RuntimeError("deadlock: programs wait for messages that nobody sends")
        ends_s = [request.ended_s for request in self._requests if request.ended_s is not None]
        return ServingRun(
            requests=tuple(self._requests),
            steps=tuple(self.steps),
            num_refused=self._queue.num_refused,
            end_s=max(ends_s, default=0.0),
        )

    def _arrivals(self) -> Events:
        for job in sorted(self._jobs, key=lambda job: job.arrival_s):
            if job.arrival_s > self.env.now:
                yield self.env.timeout(job.arrival_s - self.env.now)
            self._submit(job)

    def _client(self, jobs: Iterator[Job]) -> Events:
        for job in jobs:
            request = self._submit(job)
            if request is not None:
                yield request.done

    def _submit(self, job: Job) -> ServedRequest | None:
        request = ServedRequest(
            number=len(self._requests),
            job=job,
            text=self._serving.text(job),
            arrival_s=float(self.env.now),
            done=self.env.event(),
        )
        self._requests.append(request)
        num_tokens = len(request.text.prompt)
        if not self._queue.submit(request.number, num_tokens=num_tokens, max_tokens=num_tokens + len(request.text.output)):
            return None
        self.admit()
        return request

    def admit(self) -> None:
        """Begin what may begin now."""
        for number in self._queue.admit():
            self._begin(number)

    def _begin(self, number: int) -> None:
        request, policy = self._requests[number], self._serving.policy
        if request.begun_s is None:
            request.begun_s = float(self.env.now)
        program = next(self._numbers)
        self._program_of[number], self._request_of[program] = program, number
        rest = Request(
            prompt=(*request.text.prompt, *request.output),
            max_new_tokens=len(request.text.output) - len(request.output),
        )
        parts = []
        for group in self._groups:
            oracle = self._serving.oracle(program, request.text, group.device, self._seed)
            parts.append(RequestPart(group.device, oracle=oracle))
        connected(parts)
        programs = policy.programs(rest)
        for group, part in zip(self._groups, parts, strict=True):
            again = programs if group.device.group == 0 else policy.programs(rest)
            group.add(program, again[group.device.role], part, is_elastic=policy.elastic)

    def note_commit(self, program: int, tokens: tuple[int, ...]) -> None:
        """Count tokens as output; whoever has to give way for them is stopped."""
        number = self._request_of[program]
        request = self._requests[number]
        request.output += tokens
        for other in self._queue.grow(number, len(request.text.prompt) + len(request.output)):
            self._requests[other].num_preemptions += 1
            self._requests[other].spans += self._stop(self._program_of.pop(other))

    def _stop(self, program: int) -> list[Span]:
        return [span for group in self._groups for span in group.remove(program)]

    def note_end(self, program: int, group: "_SimulatedGroup", spans: Sequence[Span]) -> None:
        """Add a part's spans; the request is done when its leading program is."""
        number = self._request_of[program]
        request = self._requests[number]
        request.spans += spans
        if group is self._leader:
            request.ended_s = float(self.env.now)
            self._queue.release(number)
            request.done.succeed()
            self._num_done += 1
            self._done(self._num_done)
            self.admit()


class _SimulatedGroup:
    """A device group and the programs on it."""

    def __init__(self, device: DeviceGroup, group: Group, run: _Run) -> None:
        self.device = device
        self._group = group
        self._run = run
        self._env = device.env
        self._parts: dict[int, RequestPart] = {}
        self._waiting_since_s: dict[int, float] = {}

    def add(self, program: int, generator: Program, part: RequestPart, *, is_elastic: bool) -> None:
        """Begin a request's part."""
        self._parts[program] = part
        self._group.add(program, generator, is_elastic=is_elastic)
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
        part, group = self._parts[program], self._group
        while (effect := group.resume(program, answer, now_s=self._env.now)) is not None:
            if isinstance(effect, Receive):
                message = part.poll(effect.peer)
                if message is None:
                    group.block(program, effect)
                    self._waiting_since_s[program] = self._env.now
                    return
                part.note(Phase.WAIT, self.device.role, self._env.now)
                answer = message
                continue
            answer = yield from part.perform(effect)
            if isinstance(effect, Commit) and program in group:
                self._run.note_commit(program, effect.tokens)
            if program not in group:  # it gave way meanwhile
                return
        if program not in group:
            self._run.note_end(program, self, self._parts.pop(program).spans)

    def _compute(self, step: Step) -> Events:
        env, device = self._env, self.device
        effects = self._group.begin(step)
        forms = [(program, effect, *self._parts[program].form(effect)) for program, effect in effects]
        host_s = sum(device.meter.host(phase, rows) for _, _, phase, _, rows in forms)
        if host_s:
            yield env.timeout(host_s)
        start_s = env.now
        # Prompts are priced as such only where nothing else is computed with them.
        phase = next((phase for _, _, phase, _, _ in forms if phase is not Phase.PREFILL), Phase.PREFILL)
        attended = sum(rows * self._parts[program].oracle.context(step.model) for program, _, _, _, rows in forms)
        yield from device.compute(phase, step.model, rows=step.num_rows, context=round(attended / step.num_rows))
        answers = {}
        for program, effect, its_phase, model, rows in forms:
            if (part := self._parts.get(program)) is not None:
                part.note(its_phase, model, start_s, rows=rows)
                answers[program] = part.answer(effect)
        self._group.finish(step, answers)
        self._run.steps.append(
            ComputedStep(device.role, device.group, phase, step.model, len(forms), step.num_rows, start_s, env.now)
        )
        self._run.admit()

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
