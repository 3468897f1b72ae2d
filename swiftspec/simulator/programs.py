"""Programs of a served request, each with what answers its forwards."""

from collections.abc import Mapping, Sequence

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.lookup.known_text import SharedOutputs
from swiftspec.policies.scoring import PromptScoring
from swiftspec.scheduler.controller import Steering
from swiftspec.simulator.draft_server import served_programs
from swiftspec.simulator.oracle import MASK_TOKEN, CandidatePool, TraceOracle
from swiftspec.simulator.process import DeviceGroup
from swiftspec.simulator.texts import ReadOracle, StretchedOracle, StretchedText

Begun = list[tuple[Program, TraceOracle]]


def begin_scoring(text: StretchedText) -> Begun:
    """The program of a target that scores a text's prompt; it answers nothing."""
    request = Request(prompt=tuple(text.prompt), max_new_tokens=1)
    return [(PromptScoring().programs(request)[Role.TARGET], ReadOracle(text))]


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
        """A program for each device group.

        number: sets its random numbers apart from those of others. num_output: tokens of the output that exist already.
        """
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
            seed = (self._seed, number, *device.stream)
            oracle = StretchedOracle(self._pool, self._prompts, text, seed=seed)
            again = programs if device.group == 0 else self._programs(rest)
            begun.append((again[device.role], oracle))
        return begun

    def _programs(self, request: Request) -> Mapping[Role, Program]:
        if self._patience_s is not None:
            return served_programs(self._policy, request, patience_s=self._patience_s)
        return self._steering.programs(self._policy, request) if self._steering else self._policy.programs(request)
