"""Simulation of many requests at once: the scheduler's groups run role programs on simulated devices.

A step costs what a forward of as many rows costs, at the mean context of its rows, and the profile's sharing cost for
every request beyond the first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, product
from operator import attrgetter

import simpy

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.scheduler.controller import Steering
from swiftspec.scheduler.group import Group
from swiftspec.scheduler.routing import ONE_REPLICA, Replicas, Router
from swiftspec.simulator.draft_server import usual_patience_s
from swiftspec.simulator.driver import device_groups, group_degrees, group_ranks
from swiftspec.simulator.jobs import Job, ServedRequest, ServingRun
from swiftspec.simulator.latency import LatencySampler, LatencyTable
from swiftspec.simulator.oracle import CandidatePool
from swiftspec.simulator.process import DeviceGroup, Events
from swiftspec.simulator.programs import TracedPrograms
from swiftspec.simulator.replica import Replica
from swiftspec.simulator.serving_group import ComputedStep, ServingGroup
from swiftspec.simulator.texts import StretchedText
from swiftspec.timing.steps import Latencies


class Serving:
    """Serves jobs by one policy; as `Simulator`, whose timelines one job at a time reproduces.

    latencies: of a profile. degrees, ranks: as in `simulator.driver.simulate`. steering: decides how much is drafted
    and verified; all that the policy asks for, if not given.
    """

    def __init__(
        self,
        latencies: Latencies | LatencyTable,
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
        self._prices = latencies if isinstance(latencies, LatencyTable) else LatencyTable(latencies)
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
        replicas: Replicas = ONE_REPLICA,
        done: Callable[[int], None] = lambda _: None,
    ) -> ServingRun:
        """Serve all jobs, from an empty machine to an empty machine.

        num_clients: a closed loop of so many clients, each of which sends its next request when its last one is done.
        replicas: number of equal machines that share the requests.
        done: called with the number of requests that have ended.

        ValueError: if a job's prompt does not exist, it could never fit into the cache, or the policy cannot run on
        these replicas.
        """
        replicas.check(self.policy)
        programs = self._traced(seed, num_clients)
        return Run(self, jobs, replicas, programs=programs, seed=seed, done=done).served(num_clients)

    def open(self, env: simpy.Environment, *, seed: int = 0) -> "Run":
        """Serve what others submit, in their simulation."""
        run = Run(self, (), ONE_REPLICA, programs=self._traced(seed), seed=seed, env=env)
        run.start()
        return run

    def _traced(self, seed: int, num_clients: int | None = None) -> TracedPrograms:
        most = self.admission.max_running
        sequences = min(most, num_clients or most)
        patience_s = usual_patience_s(
            self._prices, self.policy, self._trace, self._degrees, self._ranks, sequences=sequences
        )
        return TracedPrograms(
            self.policy, self._trace, self._pool, seed=seed, steering=self._steering, patience_s=patience_s
        )

    def new_meter(self, seed: int, number: int) -> LatencySampler:
        """A sampler of latencies; `number` sets the random numbers of replicas apart."""
        policy = self.policy
        meter = LatencySampler(
            self._prices, policy=policy.name, layout=policy.layout, degrees=self._degrees, ranks=self._ranks
        )
        meter.seed(seed, number)
        return meter

    def new_group(self, role: Role) -> Group:
        steering = self._steering if role is Role.TARGET else None
        return Group(self._batch, steering and steering.controller(self._batch.max_rows))

    def text(self, job: Job) -> StretchedText:
        prompts = self._trace.prompts
        if not 0 <= job.prompt_index < len(prompts):
            raise ValueError(f"prompt_index is {job.prompt_index}; expected one of the trace's {len(prompts)}")
        return StretchedText(
            prompts, job.prompt_index, prompt_tokens=job.prompt_tokens, output_tokens=job.output_tokens
        )


class Run:
    """One simulation: requests come, and a router gives them to replicas."""

    def __init__(
        self,
        serving: Serving,
        jobs: Sequence[Job],
        replicas: Replicas,
        *,
        programs: TracedPrograms,
        seed: int,
        done: Callable[[int], None] = lambda _: None,
        env: simpy.Environment | None = None,
    ) -> None:
        self.env = env or simpy.Environment()
        self._serving, self._jobs = serving, jobs
        self._requests: list[ServedRequest] = []
        self._router = Router(replicas.router)
        self._done, self._num_done = done, 0
        numbers = count()
        drafts = None if replicas.num_drafts is None else Router("least-loaded")
        self._replicas = [
            Replica(
                self.env,
                serving.policy,
                serving.admission,
                programs=programs,
                numbers=numbers,
                ended=self._note_end,
                drafts=drafts,
            )
            for _ in range(replicas.num_targets)
        ]
        self._steps_of_pool: list[ComputedStep] = []
        self._groups = list(self._new_groups(seed, replicas.num_drafts))

    def _new_groups(self, seed: int, num_drafts: int | None) -> Iterator[ServingGroup]:
        """Groups of drafts that all replicas share, if there are any, and those of every replica alone."""
        serving, num_targets = self._serving, len(self._replicas)
        pool = []
        for number in range(num_targets, num_targets + (num_drafts or 0)):
            device = DeviceGroup(self.env, Role.DRAFT, meter=serving.new_meter(seed, number))
            pool.append(ServingGroup(device, serving.new_group(device.role), self._steps_of_pool.append))
        yield from pool
        for number, replica in enumerate(self._replicas):
            devices = device_groups(self.env, serving.policy, serving.new_meter(seed, number), has_draft=not pool)
            for device, draft in product(devices, [group.device for group in pool]):
                device.peers.append(draft)
                draft.peers.append(device)
            own = [ServingGroup(device, serving.new_group(device.role), replica.note_step) for device in devices]
            replica.groups = [*own, *pool]
            yield from own

    def start(self) -> None:
        """Let the device groups wait for requests."""
        for group in self._groups:
            self.env.process(group.serve())

    def served(self, num_clients: int | None) -> ServingRun:
        self.start()
        if num_clients is None:
            self.env.process(self._arrivals())
        else:
            jobs = iter(self._jobs)
            for _ in range(num_clients):
                self.env.process(self._client(jobs))
        self.env.run()
        if any(replica.num_requests for replica in self._replicas):
            raise RuntimeError("deadlock: programs wait for messages that nobody sends")
        ends_s = [request.ended_s for request in self._requests if request.ended_s is not None]
        steps = [step for replica in self._replicas for step in replica.steps]
        steps += self._steps_of_pool
        if len(self._replicas) > 1:
            steps.sort(key=attrgetter("end_s"))
        return ServingRun(
            requests=tuple(self._requests),
            steps=tuple(steps),
            num_refused=sum(replica.queue.num_refused for replica in self._replicas),
            end_s=max(ends_s, default=0.0),
        )

    def _arrivals(self) -> Events:
        for job in sorted(self._jobs, key=lambda job: job.arrival_s):
            if job.arrival_s > self.env.now:
                yield self.env.timeout(job.arrival_s - self.env.now)
            if job.next_turn is None:
                self.submit(job)
            else:
                self.env.process(self._turns(job))

    def _client(self, jobs: Iterator[Job]) -> Events:
        for job in jobs:
            yield from self._turns(job)

    def _turns(self, job: Job | None) -> Events:
        """A request, and the later turns of its conversation, if any, until all have ended or one is refused."""
        while job is not None and not (request := self.submit(job)).is_refused:
            yield request.done
            if job.next_turn is not None:
                yield self.env.timeout(job.think_time_s)
            job = job.next_turn

    def submit(self, job: Job) -> ServedRequest:
        """Queue a request; its `done` happens when it has ended. ValueError if it could never fit into the cache."""
        request = ServedRequest(
            number=len(self._requests),
            job=job,
            text=self._serving.text(job),
            arrival_s=float(self.env.now),
            done=self.env.event(),
        )
        self._requests.append(request)
        chosen = self._router.choose([replica.num_requests for replica in self._replicas])
        request.is_refused = not self._replicas[chosen].submit(request)
        return request

    def _note_end(self) -> None:
        self._num_done += 1
        self._done(self._num_done)
