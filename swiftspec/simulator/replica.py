"""A simulated replica: admission of its requests, and the device groups that run their programs.

A request that gave way begins again with another program: programs have numbers of their own. Several replicas may
share groups of devices for the drafts of their requests, a draft pool.
"""

from collections.abc import Callable, Iterator, Sequence

import simpy

from swiftspec.policies import Policy
from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.routing import Router
from swiftspec.simulator.driver import connect
from swiftspec.simulator.jobs import ServedRequest
from swiftspec.simulator.process import RequestPart
from swiftspec.simulator.programs import TracedPrograms, begin_scoring
from swiftspec.simulator.serving_group import ComputedStep, ServingGroup
from swiftspec.timing.timeline import Span


class Replica:
    """One target with its draft, and the requests that it serves.

    programs: of its requests. numbers: of programs, no two of which are equal on any device group. ended: called
    when a request has ended. drafts: router of its requests to the groups of a pool, if it is in one.

    groups: those that its requests run on, the target's first; to be set before the first request.
    """

    def __init__(
        self,
        env: simpy.Environment,
        policy: Policy,
        admission: AdmissionLimits,
        *,
        programs: TracedPrograms,
        numbers: Iterator[int],
        ended: Callable[[], None],
        drafts: Router | None = None,
    ) -> None:
        self.groups: list[ServingGroup] = []
        self.steps: list[ComputedStep] = []
        self._env, self._policy, self._programs, self._numbers = env, policy, programs, numbers
        self._ended, self._drafts = ended, drafts
        self.queue = AdmissionQueue(admission)
        self._requests: dict[int, ServedRequest] = {}
        self._program_of: dict[int, int] = {}  # of each request that runs
        self._request_of: dict[int, int] = {}  # of each of its programs

    @property
    def num_requests(self) -> int:
        """Requests that run or wait."""
        return self.queue.num_running + self.queue.num_waiting

    def submit(self, request: ServedRequest) -> bool:
        """Queue a request; whether there was room."""
        self._requests[request.number] = request
        num_tokens = len(request.text.prompt)
        longest = num_tokens + len(request.text.output)
        if not self.queue.submit(request.number, num_tokens=num_tokens, max_tokens=longest, client=request.job.client):
            return False
        self.admit()
        return True

    def admit(self) -> None:
        """Begin what may begin now."""
        self._give_way(self.queue.make_way())
        for number in self.queue.admit():
            self._begin(number)

    def _begin(self, number: int) -> None:
        request = self._requests[number]
        if request.begun_s is None:
            request.begun_s = float(self._env.now)
        program = next(self._numbers)
        self._program_of[number], self._request_of[program] = program, number
        groups = self._groups_of(request)
        devices = [group.device for group in groups]
        if request.job.is_scored:
            begun = begin_scoring(request.text)
        else:
            begun = self._programs.begin(program, request.text, len(request.output), devices)
        parts = [RequestPart(device, oracle=oracle) for device, (_, oracle) in zip(devices, begun, strict=True)]
        connect(parts)
        for group, part, (generator, _) in zip(groups, parts, begun, strict=True):
            group.add(program, generator, part, self, is_elastic=self._policy.elastic, tpot_s=request.job.tpot_s)

    def _groups_of(self, request: ServedRequest) -> list[ServingGroup]:
        """Where a request runs: a prompt is scored by one target, without a draft."""
        if request.job.is_scored:
            return self.groups[:1]
        if self._drafts is None:
            return self.groups
        target, *drafts = self.groups
        return [target, drafts[self._drafts.choose([len(draft) for draft in drafts])]]

    def note_commit(self, program: int, tokens: tuple[int, ...]) -> None:
        """Count tokens as output; whoever has to give way for them is stopped."""
        number = self._request_of[program]
        request = self._requests[number]
        request.output += tokens
        self._give_way(self.queue.grow(number, len(request.text.prompt) + len(request.output)))

    def _give_way(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._requests[number].num_preemptions += 1
            program = self._program_of.pop(number)
            self._requests[number].spans += [span for group in self.groups for span in group.remove(program)]

    def note_step(self, step: ComputedStep) -> None:
        """Keep a step, and admit whom the last one kept out."""
        self.steps.append(step)
        self.admit()

    def note_end(self, program: int, group: ServingGroup, spans: list[Span]) -> None:
        """Add a part's spans; the request is done when its leading program is."""
        number = self._request_of[program]
        request = self._requests[number]
        request.spans += spans
        # Where several groups verify for a draft, the draft commits.
        leads = -1 if self._policy.target_groups > 1 and not request.job.is_scored else 0
        if group is self.groups[leads]:
            request.ended_s = float(self._env.now)
            self.queue.release(number)
            request.done.succeed()
            self._ended()
            self.admit()
