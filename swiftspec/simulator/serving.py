"""Simulation of many requests at once: the scheduler's groups run role programs on simulated devices.

A step costs what a forward of as many rows costs, at the mean context of its rows, and the profile's sharing cost for
every request beyond the first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import simpy

from swiftspec.artifacts.steps import Latencies
from swiftspec.artifacts.timeline import Span, Timeline
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.group import Group
from swiftspec.simulator.driver import connected, device_groups, group_degrees, group_ranks
from swiftspec.simulator.latency import LatencySampler, LatencyTable
from swiftspec.simulator.oracle import CandidatePool, TraceOracle
from swiftspec.simulator.process import DeviceGroup, Events, RequestPart
from swiftspec.simulator.serving_group import ComputedStep, ServingGroup
from swiftspec.simulator.texts import StretchedOracle, StretchedText

__all__ = ["Job", "ServedRequest", "Serving", "ServingRun"]


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

    def __init__(self, serving: Serving, jobs: Sequence[Job], *, seed: int, done: Callable[[int], None]) -> None:
        self.env = simpy.Environment()
        self.steps: list[ComputedStep] = []
        self._serving, self._jobs, self._seed = serving, jobs, seed
        meter = serving.meter(seed)
        self._groups = [
            ServingGroup(device, serving.new_group(), self) for device in device_groups(self.env, serving.policy, meter)
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
        longest = num_tokens + len(request.text.output)
        if not self._queue.submit(request.number, num_tokens=num_tokens, max_tokens=longest):
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

    def note_step(self, step: ComputedStep) -> None:
        """Keep a step, and admit whom the last one kept out."""
        self.steps.append(step)
        self.admit()

    def _stop(self, program: int) -> list[Span]:
        return [span for group in self._groups for span in group.remove(program)]

    def note_end(self, program: int, group: ServingGroup, spans: list[Span]) -> None:
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
