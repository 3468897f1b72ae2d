"""Programs of a served request, each with what answers its forwards: a policy's own, logged ones, or replayed ones."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Program
from swiftspec.simulator.oracle import CandidatePool
from swiftspec.simulator.process import DeviceGroup, Oracle
from swiftspec.simulator.recording import Log, Recording, logged
from swiftspec.simulator.replay import CountingOracle, play_draft, play_target
from swiftspec.simulator.texts import StretchedOracle, StretchedText

__all__ = ["LoggedPrograms", "ReplayedPrograms", "RequestPrograms", "TracedPrograms"]

# A request of the sampled prompts is recorded so often in all. Different ones of a prompt differ in their random
# numbers: the candidates of wrong tokens, and the latencies.
_NUM_RECORDINGS = 64

Begun = list[tuple[Program, Oracle]]


class RequestPrograms(Protocol):
    """Maker of the programs of served requests."""

    def begin(self, number: int, text: StretchedText, num_output: int, devices: Sequence[DeviceGroup]) -> Begun:
        """A program for each device group.

        number: sets its random numbers apart from those of others. num_output: tokens of the output that exist already.
        """


class TracedPrograms:
    """A policy's programs, whose forwards are answered from a trace.

    Parameters
    ----------
    policy : Policy
    trace : AcceptanceTrace
    pool : CandidatePool
        The trace's candidates.
    seed : int
    """

    def __init__(self, policy: Policy, trace: AcceptanceTrace, pool: CandidatePool, *, seed: int) -> None:
        self._policy = policy
        self._prompts = trace.prompts
        self._pool = pool
        self._seed = seed

    def begin(self, number: int, text: StretchedText, num_output: int, devices: Sequence[DeviceGroup]) -> Begun:
        """A program for each device group, and an oracle with random numbers of its own."""
        rest = Request(prompt=(*text.prompt, *text.output[:num_output]), max_new_tokens=len(text.output) - num_output)
        programs = self._policy.programs(rest)
        begun: Begun = []
        for device in devices:
            rng = np.random.default_rng([self._seed, number, *device.stream])
            oracle = StretchedOracle(self._pool, self._prompts, text, rng=rng)
            again = programs if device.group == 0 else self._policy.programs(rest)
            begun.append((again[device.role], oracle))
        return begun


class LoggedPrograms:
    """Programs whose effects are logged.

    Attributes
    ----------
    logs : list
        Of the last request that began, one for each device group.
    """

    def __init__(self, programs: RequestPrograms) -> None:
        self._programs = programs
        self.logs: list[Log] = []

    def begin(self, number: int, text: StretchedText, num_output: int, devices: Sequence[DeviceGroup]) -> Begun:
        """The programs that those underlying make, logged."""
        begun = self._programs.begin(number, text, num_output, devices)
        self.logs = [[] for _ in begun]
        return [(logged(program, log), oracle) for (program, oracle), log in zip(begun, self.logs, strict=True)]


class ReplayedPrograms:
    """Replays of recorded requests, made when they are first needed; other programs where they cannot be replayed.

    Parameters
    ----------
    indices : sequence of int
        Prompts with which texts begin. Where there are many, some of them stand for the others.
    record : callable
        Simulates a request alone, given the index of its prompt, the length of its prompt and a number for its random
        numbers.
    others : RequestPrograms
    draft_slots : int
        Tree slots of the draft's cache.

    Attributes
    ----------
    num_replayed : int
        Requests that were replayed, counted again when they began again.
    """

    def __init__(
        self,
        indices: Sequence[int],
        *,
        record: Callable[[int, int, int], Recording | None],
        others: RequestPrograms,
        draft_slots: int,
    ) -> None:
        distinct = sorted(set(indices))
        sampled = distinct[:: -(-len(distinct) // _NUM_RECORDINGS)]
        self._stand_in = {index: sampled[place % len(sampled)] for place, index in enumerate(distinct)}
        self._stand_in |= {index: index for index in sampled}
        self._num_variants = max(1, _NUM_RECORDINGS // len(sampled))
        self._record, self._others, self._draft_slots = record, others, draft_slots
        self._recordings: dict[tuple[int, int], Recording | None] = {}
        self.num_replayed = 0

    def begin(self, number: int, text: StretchedText, num_output: int, devices: Sequence[DeviceGroup]) -> Begun:
        """Programs that replay a recording of the text's prompt."""
        key = (self._stand_in[text.indices[0]], number % self._num_variants)
        if key not in self._recordings:
            self._recordings[key] = self._record(key[0], len(text.prompt), len(self._recordings))
        recording = self._recordings[key]
        if recording is None:
            return self._others.begin(number, text, num_output, devices)
        self.num_replayed += 1
        prompt = (*text.prompt, *text.output[:num_output])
        programs = [play_target(recording, prompt, text.output, num_output=num_output)]
        if recording.segments:
            programs.append(play_draft(recording, prompt, capacity=self._draft_slots))
        return [(program, CountingOracle()) for program in programs]
