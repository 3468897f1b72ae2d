"""Jobs to serve in simulated time, and what became of them."""

from dataclasses import dataclass, field

import simpy

from swiftspec.policies.effects import Role
from swiftspec.simulator.serving_group import ComputedStep
from swiftspec.simulator.texts import StretchedText
from swiftspec.timing.timeline import Span, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request to serve.

    arrival_s: when it comes. In a closed loop only the order counts.
    prompt_index: index of the traced prompt that its text begins with.
    prompt_tokens: length of its prompt, see `StretchedText`; that of the traced one if None.
    output_tokens: length of its output.
    client: whose it is.
    tpot_s: its limit on the time per token, for controls that keep limits.
    is_scored: whether its prompt is to be scored, instead of continued.
    class_name: class of the workload that it belongs to.
    next_turn: what its client sends `think_time_s` after its end: the next turn of a conversation.
    """

    arrival_s: float = 0.0
    prompt_index: int
    prompt_tokens: int | None = None
    output_tokens: int
    client: str = ""
    tpot_s: float | None = None
    is_scored: bool = False
    class_name: str = ""
    next_turn: "Job | None" = None
    think_time_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class ServedRequest:
    """A job, and what became of it.

    number: place in the order of arrival. done: happens when it ends.

    begun_s, ended_s: when it was admitted first, and when it ended. None if there was no room for it in the queue.
    """

    number: int
    job: Job
    text: StretchedText
    arrival_s: float
    done: simpy.Event
    begun_s: float | None = None
    ended_s: float | None = None
    is_refused: bool = False
    num_preemptions: int = 0
    spans: list[Span] = field(default_factory=list)
    output: list[int] = field(default_factory=list)

    @property
    def timeline(self) -> Timeline:
        """Its spans from its arrival on, with its own rows of the steps that it shared."""
        spans = tuple(sorted(self.spans, key=lambda span: (span.start_s, span.role is Role.DRAFT, span.group)))
        return Timeline(request=str(self.number), start_s=self.arrival_s, spans=spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRun:
    """Everything that was served, the steps of all device groups in order of time, and when the last request ended."""

    requests: tuple[ServedRequest, ...]
    steps: tuple[ComputedStep, ...]
    num_refused: int
    end_s: float
