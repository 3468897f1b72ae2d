"""Simulation of many requests at once: the scheduler's groups run role programs on simulated devices.

A step costs what a forward of as many rows costs, at the mean context of its rows, and the profile's sharing cost for
every request beyond the first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import simpy

from swiftspec.artifacts.steps import Latencies
from swiftspec.artifacts.timeline import Span
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Steering
from swiftspec.scheduler.group import Group
from swiftspec.simulator.driver import connected, device_groups, group_degrees, group_ranks
from swiftspec.simulator.jobs import Job, ServedRequest, ServingRun
from swiftspec.simulator.latency import LatencySampler, LatencyTable
from swiftspec.simulator.oracle import CandidatePool
from swiftspec.simulator.process import Events, RequestPart
from swiftspec.simulator.programs import (
    LoggedPrograms,
    ReplayedPrograms,
    RequestPrograms,
    TracedPrograms,
    begin_scoring,
)
from swiftspec.simulator.serving_group import ComputedStep, ServingGroup
from swiftspec.simulator.texts import StretchedText

__all__ = ["Job", "OpenServing", "ServedRequest", "Serving", "ServingRun"]


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
    steering : Steering, optional
        Decides how much is drafted and verified; all that the policy asks for, if not given.
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
        steering: Steering | None = None,
    ) -> None:
        self.policy = policy
        self._steering = steering
        self.admission = admission
        self._batch = batch
        self._prices = LatencyTable(latencies)
        self._pool = CandidatePool(trace)
        self._trace = trace
        self._degrees = group_degrees(degrees, policy)
        self._ranks = group_ranks(ranks or {}, policy)

    def run(
        self,
        jobs: Sequence[Job],
        *,
        num_clients: int | None = None,
        seed: int = 0,
        num_recorded: int = 0,
        done: Callable[[int], None] = lambda _: None,
    ) -> ServingRun:
        """Serve all jobs, from an empty machine to an empty machine.

        num_clients: a closed loop of so many clients, each of which sends its next request when its last one is done.
        num_recorded: if any, as many of the first requests are recorded, and all replay these rounds (see `replay`).
        done: called with the number of requests that have ended.

        Raises
        ------
        ValueError
            If a job's prompt does not exist, or it could never fit into the cache.
        """
        traced = self._traced(seed)
        if not num_recorded or self._steering is not None:  # recorded rounds are as long as they were
            return _Run(self, jobs, programs=traced, meter=self._meter(seed), done=done).served(num_clients)
        first = sorted(jobs, key=lambda job: job.arrival_s)[:num_recorded]
        programs = LoggedPrograms(traced)
        _Run(self, first, programs=programs, meter=self._meter(seed)).served(num_clients)
        recordings = programs.recordings()
        if not recordings:
            return self.run(jobs, num_clients=num_clients, seed=seed, done=done)
        replayed = ReplayedPrograms(recordings, draft_slots=self.policy.draft_rows)
        run = _Run(self, jobs, programs=replayed, meter=self._meter(seed), done=done).served(num_clients)
        return replace(run, num_replayed=replayed.num_replayed)

    def open(self, env: simpy.Environment, *, seed: int = 0) -> "OpenServing":
        """Serve what others submit, in their simulation."""
        return OpenServing(_Run(self, (), programs=self._traced(seed), meter=self._meter(seed), env=env))

    def _traced(self, seed: int) -> TracedPrograms:
        return TracedPrograms(self.policy, self._trace, self._pool, seed=seed)

    def _meter(self, seed: int) -> LatencySampler:
        meter = LatencySampler(self._prices, policy=self.policy.name, degrees=self._degrees, ranks=self._ranks)
        meter.seed(seed, 0)
        return meter

    def new_group(self, role: Role) -> Group:
        """An empty group of programs."""
        steering = self._steering if role is Role.TARGET else None
        return Group(self._batch, steering and steering.controller(self._batch.max_rows))

    def text(self, job: Job) -> StretchedText:
        """A job's prompt and output."""
        prompts = self._trace.prompts
        if not 0 <= job.prompt_index < len(prompts):
            raise ValueError(f"prompt_index is {job.prompt_index}; expected one of the trace's {len(prompts)}")
        return StretchedText(
            prompts, job.prompt_index, prompt_tokens=job.prompt_tokens, output_tokens=job.output_tokens
        )


class _Run:
    """One simulation: admission of requests, and the device groups that run their programs.

    A request that gave way begins again with another program: programs have numbers of their own.
    """

    def __init__(
        self,
        serving: Serving,
        jobs: Sequence[Job],
        *,
        programs: RequestPrograms,
        meter: LatencySampler,
        done: Callable[[int], None] = lambda _: None,
        env: simpy.Environment | None = None,
    ) -> None:
        self.env = env or simpy.Environment()
        self.steps: list[ComputedStep] = []
        self._serving, self._jobs, self._programs = serving, jobs, programs
        self._groups = [
            ServingGroup(device, serving.new_group(device.role), self)
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

    def start(self) -> None:
        """Let the device groups wait for requests."""
        for group in self._groups:
            self.env.process(group.serve())

    def served(self, num_clients: int | None) -> ServingRun:
        """Everything, to the end."""
        self.start()
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
            self.submit(job)

    def _client(self, jobs: Iterator[Job]) -> Events:
        for job in jobs:
            request = self.submit(job)
            if request is not None:
                yield request.done

    def submit(self, job: Job) -> ServedRequest | None:
        """Queue a request; None if there is no room."""
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
        if not self._queue.submit(request.number, num_tokens=num_tokens, max_tokens=longest, client=job.client):
            return None
        self.admit()
        return request

    def admit(self) -> None:
        """Begin what may begin now."""
        self._give_way(self._queue.make_way())
        for number in self._queue.admit():
            self._begin(number)

    def _begin(self, number: int) -> None:
        request, policy = self._requests[number], self._serving.policy
        if request.begun_s is None:
            request.begun_s = float(self.env.now)
        program = next(self._numbers)
        self._program_of[number], self._request_of[program] = program, number
        groups = self._groups_of(request)
        devices = [group.device for group in groups]
        if request.job.is_scored:
            begun = begin_scoring(request.text)
        else:
            begun = self._programs.begin(program, request.text, len(request.output), devices)
        parts = [RequestPart(device, oracle=oracle) for device, (_, oracle) in zip(devices, begun, strict=True)]
        connected(parts)
        for group, part, (generator, _) in zip(groups, parts, begun, strict=True):
            group.add(program, generator, part, is_elastic=policy.elastic, tpot_s=request.job.tpot_s)

    def _groups_of(self, request: ServedRequest) -> list[ServingGroup]:
        """Where a request runs: a prompt is scored by one target, without a draft."""
        return self._groups[:1] if request.job.is_scored else self._groups

    def note_commit(self, program: int, tokens: tuple[int, ...]) -> None:
        """Count tokens as output; whoever has to give way for them is stopped."""
        number = self._request_of[program]
        request = self._requests[number]
        request.output += tokens
        self._give_way(self._queue.grow(number, len(request.text.prompt) + len(request.output)))

    def _give_way(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._requests[number].num_preemptions += 1
            self._requests[number].spans += self._stop(self._program_of.pop(number))

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
        if group is (self._groups[0] if request.job.is_scored else self._leader):
            request.ended_s = float(self.env.now)
            self._queue.release(number)
            request.done.succeed()
            self._num_done += 1
            self._done(self._num_done)
            self.admit()


class OpenServing:
    """A simulated server, which serves what is submitted to it."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        run.start()

    def submit(self, job: Job) -> ServedRequest:
        """Queue a request; its `done` happens when it has ended. ValueError if it could never fit into the cache."""
        request = self._run.submit(job)
        assert request is not None, "what waits is not limited"
        return request
