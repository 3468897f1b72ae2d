"""Programs of a served request, each with what answers its forwards: a policy's own, logged ones, or replayed ones."""

from collections.abc import Callable, Mapping, Sequence

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.lookup.known_text import SharedOutputs
from swiftspec.policies.scoring import PromptScoring
from swiftspec.scheduler.controller import Steering
from swiftspec.simulator.draft_server import served_programs
from swiftspec.simulator.oracle import MASK_TOKEN, CandidatePool
from swiftspec.simulator.process import DeviceGroup, Oracle
from swiftspec.simulator.recording import Log, Recording, logged
from swiftspec.simulator.replay import CountingOracle, PlayedDraft, PlayedTarget
from swiftspec.simulator.texts import StretchedOracle, StretchedText

Begun = list[tuple[Program, Oracle]]


# Makes a program for each device group, from a number that sets its random numbers apart from those of others, a text,
# and the tokens of its output that exist already.
Begin = Callable[[int, StretchedText, int, Sequence[DeviceGroup]], Begun]


def begin_scoring(text: StretchedText) -> Begun:
    """The program of a target that scores a text's prompt; it answers nothing."""
    request = Request(prompt=tuple(text.prompt), max_new_tokens=1)
    return [(PromptScoring().programs(request)[Role.TARGET], CountingOracle())]


class TracedPrograms:
    """A policy's programs, whose forwards are answered from a trace. Each replica keeps its earlier outputs.

    pool: the trace's candidates. steering: of a policy under a control. patience_s: longest wait of an engine that
    serves for the drafts of a draft server; None without one.
    """

    def __init__(
        self,
        policy: Policy,
        trace: AcceptanceTrace,
        pool: CandidatePool,
        *,
        seed: int,
        steering: Steering | None = None,
        patience_s: float | None = None,
    ) -> None:
        self._policy = policy
        self._patience_s = patience_s
        self._steering = steering
        self._prompts = trace.prompts
        self._pool = pool
        self._seed = seed
        self._earlier: dict[DeviceGroup, SharedOutputs] = {}  # of each replica, by its target's devices

    def begin(self, number: int, text: StretchedText, num_output: int, devices: Sequence[DeviceGroup]) -> Begun:
        prompt = (*text.prompt, *text.output[:num_output])
        rest = Request(
            prompt=prompt,
            max_new_tokens=len(text.output) - num_output,
            mask_token=MASK_TOKEN,
            num_output=num_output,
            earlier=self._earlier.setdefault(devices[0], SharedOutputs()).known_to(self._policy),
        )
        programs = self._programs(rest)
        begun: Begun = []
        for device in devices:
            rng = (self._seed, number, *device.stream)
            oracle = StretchedOracle(self._pool, self._prompts, text, rng=rng)
            again = programs if device.group == 0 else self._programs(rest)
            begun.append((again[device.role], oracle))
        return begun

    def _programs(self, request: Request) -> Mapping[Role, Program]:
        if self._patience_s is not None:
            return served_programs(self._policy, request, patience_s=self._patience_s)
        return self._steering.programs(self._policy, request) if self._steering else self._policy.programs(request)


class LoggedPrograms:
    """Programs whose effects are logged."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._logged: list[tuple[StretchedText, list[Log]]] = []

    def begin(self, number: int, text: StretchedText, num_output: int, devices: Sequence[DeviceGroup]) -> Begun:
        begun = self._begin(number, text, num_output, devices)
        logs: list[Log] = [[] for _ in begun]
        self._logged.append((text, logs))
        return [(logged(program, log), oracle) for (program, oracle), log in zip(begun, logs, strict=True)]

    def recordings(self) -> dict[int, list[Recording]]:
        """Recordings of the requests that were not interrupted, by the index of their prompt."""
        found: dict[int, list[Recording]] = {}
        for text, logs in self._logged:
            recording = Recording.of(logs, num_prompt_tokens=len(text.prompt))
            if recording is not None and recording.num_tokens == len(text.output):
                found.setdefault(text.indices[0], []).append(recording)
        return found


class ReplayedPrograms:
    """Replays of recorded requests.

    recordings: by the index of the prompt with which a text begins; at least one. Prompts without one share those of
    others. draft_slots: tree slots of the draft's cache. sends_features: as of `CountingOracle`.

    num_replayed: requests that were replayed, counted again when they began again.
    """

    def __init__(
        self, recordings: Mapping[int, Sequence[Recording]], *, draft_slots: int, sends_features: bool = False
    ) -> None:
        self._recordings = recordings
        self._all = [recording for index in sorted(recordings) for recording in recordings[index]]
        self._draft_slots, self._sends_features = draft_slots, sends_features
        self.num_replayed = 0

    def begin(self, number: int, text: StretchedText, num_output: int, devices: Sequence[DeviceGroup]) -> Begun:
        found = self._recordings.get(text.indices[0], self._all)
        recording = found[number % len(found)]
        self.num_replayed += 1
        prompt = (*text.prompt, *text.output[:num_output])
        programs = [PlayedTarget(recording, prompt, text.output, num_output).run()]
        if len(devices) > 1:
            programs.append(PlayedDraft(recording, prompt, self._draft_slots).run())
        return [(program, CountingOracle(sends_features=self._sends_features)) for program in programs]
