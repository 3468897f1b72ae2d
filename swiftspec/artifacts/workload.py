"""Workload: many requests with arrival times, lengths and latency limits, generated or replayed. It holds no text."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from swiftspec.artifacts.distributions import (
    LEAST_RATE,
    MOST_RATE,
    Arrivals,
    Distribution,
    Lengths,
    Process,
    Rate,
    TokenCount,
)
from swiftspec.errors import FieldError
from swiftspec.files.document import Document, Facts
from swiftspec.files.reading import shown

MOST_REQUESTS = 50_000  # a file of so many has 10 MB; more than 24 MiB of JSON are never read
MOST_ID_CHARACTERS = 64  # of a prompt or a conversation
MOST_SHARED = 64  # stretches of a prompt
SharedText = tuple[Annotated[str, Field(min_length=1, max_length=MOST_ID_CHARACTERS)], TokenCount]
_Seconds = Annotated[float, Field(gt=0, le=1e10)]


class RequestClass(Facts):
    """Requests that share latency limits.

    ttft_s, tpot_s: highest seconds until the first token, and per output token after it. No limit if not given.
    share: of the requests, as it was asked for. Classes without one divide the rest equally.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,32}$")
    ttft_s: _Seconds | None = None
    tpot_s: _Seconds | None = None
    share: float | None = Field(default=None, gt=0, le=1)


class LoadTrace(Facts):
    """The file that a workload replays, and the part of it that was taken.

    left_out: numbers of rows that are no requests, by reason. rate: what the time axis was scaled to, if it was.
    """

    format: str
    file: str
    sha256: str
    licence: str
    start_s: float = Field(default=0.0, ge=0)
    duration_s: float | None = Field(default=None, gt=0)
    rate: Rate | None = None
    left_out: dict[str, int] = Field(default_factory=dict)


class PromptSource(Facts):
    """The prompts file or acceptance trace whose prompts the requests name."""

    file: str
    sha256: str


class WorkloadRequest(Facts):
    """One request: arrival, lengths in tokens, class.

    conversation: name that several requests share. prompt_id: prompt of the workload's prompts file. client: whose it
    is; requests of several clients are admitted so that each gets its share. shared: stretches at the prompt's
    beginning that other requests may have, by name, with their tokens. think_time_s: of a later turn, seconds after
    the end of its conversation's request before; its arrival_s is then that of the conversation.
    """

    arrival_s: float = Field(ge=0, le=1e10)
    prompt_tokens: TokenCount
    output_tokens: TokenCount
    class_name: str
    conversation: str | None = Field(default=None, min_length=1, max_length=MOST_ID_CHARACTERS)
    prompt_id: str | None = Field(default=None, min_length=1, max_length=MOST_ID_CHARACTERS)
    client: str = Field(default="", max_length=MOST_ID_CHARACTERS)
    shared: tuple[SharedText, ...] = Field(default=(), max_length=MOST_SHARED, exclude_if=lambda shared: not shared)
    think_time_s: float | None = Field(
        default=None, ge=0, le=1e10, exclude_if=lambda think_time_s: think_time_s is None
    )

    @property
    def segments(self) -> tuple[SharedText, ...]:
        """What others may have of the prompt; the whole of it if it is one of a file."""
        return ((self.prompt_id, self.prompt_tokens),) if self.prompt_id else self.shared


class Workload(Document):
    """Many requests, in the order of their arrival: the load of a simulation or a measurement.

    arrivals: the process that they were drawn from. In a closed loop all requests have arrival 0, and whoever uses the
        workload releases them: the first `num_clients` at once, each other one when one ends.
    prompt_tokens, output_tokens: the distributions that the lengths were drawn from.
    seed: of all random numbers.
    trace: file of a replay.
    prompts: file of the prompts that the requests name. Without it, prompts are chosen by whoever uses the workload.

    Examples
    --------
    >>> from swiftspec.artifacts.workload import Workload
    >>> workload = Workload.load("workload.json")
    >>> workload.scaled(rate=4.0).rate
    4.0
    """

    schema_name: ClassVar[str] = "swiftspec.workload"
    schema_version: ClassVar[int] = 1

    arrivals: Arrivals
    prompt_tokens: Lengths
    output_tokens: Lengths
    seed: int = Field(ge=0)
    classes: tuple[RequestClass, ...] = Field(min_length=1, max_length=100)
    requests: tuple[WorkloadRequest, ...] = Field(min_length=1, max_length=MOST_REQUESTS)
    trace: LoadTrace | None = None
    prompts: PromptSource | None = None

    @model_validator(mode="after")
    def _classes_known(self) -> Self:
        name, count = Counter(each.name for each in self.classes).most_common(1)[0]
        if count > 1:
            raise ValueError(f"classes holds {count} entries named {shown(name)}; expected one each")
        names = {each.name for each in self.classes}
        for index, request in enumerate(self.requests):
            if request.class_name not in names:
                name = shown(request.class_name)
                raise ValueError(f"requests[{index}].class_name is {name}; expected one of classes")
        return self

    @model_validator(mode="after")
    def _requests_possible(self) -> Self:
        if self.is_closed and self.duration_s:
            last = len(self.requests) - 1
            raise ValueError(
                f"requests[{last}].arrival_s is {self.duration_s}; expected 0, since arrivals are {self.arrivals}"
            )
        begun = set[str]()
        for index, (before, request) in enumerate(pairwise((self.requests[0], *self.requests))):
            shared = sum(tokens for _, tokens in request.shared)
            if request.arrival_s < before.arrival_s:
                fault = (
                    f"arrival_s is {request.arrival_s}, before the {before.arrival_s} of the request before it; "
                    "expected ascending times"
                )
            elif shared > request.prompt_tokens:
                fault = f"shared has {shared} tokens; prompt_tokens is {request.prompt_tokens}"
            elif request.think_time_s is not None and request.conversation not in begun:
                fault = (
                    f"think_time_s is {request.think_time_s:g}; expected an earlier request of conversation "
                    f"{shown(request.conversation)}"
                )
            else:
                begun.add(request.conversation or "")
                continue
            raise ValueError(f"requests[{index}].{fault}")
        return self

    @model_validator(mode="after")
    def _from_its_sources(self) -> Self:
        if (self.arrivals.process is Process.REPLAY) != (self.trace is not None):
            raise ValueError(
                f"trace is {'missing' if self.trace is None else 'given'}; arrivals.process is {self.arrivals.process}"
            )
        if (self.prompt_tokens.distribution is Distribution.PROMPTS) != (self.prompts is not None):
            raise ValueError(
                f"prompts is {'missing' if self.prompts is None else 'given'}; "
                f"prompt_tokens.distribution is {self.prompt_tokens.distribution}"
            )
        for index, request in enumerate(self.requests):
            if (request.prompt_id is None) != (self.prompts is None):
                found = shown(request.prompt_id)
                raise ValueError(f"requests[{index}].prompt_id is {found}; expected one if there are prompts")
        return self

    @property
    def is_closed(self) -> bool:
        """Whether the end of a request is the arrival of another one."""
        return self.arrivals.process is Process.CLOSED

    @property
    def starts(self) -> tuple[WorkloadRequest, ...]:
        """Requests that come by themselves, not when another one has ended: all but later turns of conversations."""
        return tuple(request for request in self.requests if request.think_time_s is None)

    @property
    def has_turns(self) -> bool:
        """Whether any request waits for the end of its conversation's request before."""
        return any(request.think_time_s is not None for request in self.requests)

    def check_arrivals(self, sender: str) -> None:
        """ValueError if a request waits for an answer, for a sender, a noun, that knows arrivals only."""
        for index, request in enumerate(self.requests):
            if request.think_time_s is not None:
                raise ValueError(
                    f"requests[{index}].think_time_s is {request.think_time_s:g}; {sender} cannot wait for the answer "
                    "before: expected a workload without turns"
                )

    @cached_property
    def repeated_share(self) -> float:
        """Share of the prompts' tokens that an earlier request had, an answer of its conversation included."""
        known = dict[str, int]()
        repeated = 0
        for request in self.requests:
            for name, tokens in request.segments:
                repeated += min(known.get(name, 0), tokens)
                answer = request.output_tokens if name == request.conversation else 0
                known[name] = max(known.get(name, 0), tokens + answer)
        return repeated / sum(request.prompt_tokens for request in self.requests)

    def beginning(self, *, most_tokens: int, least: int) -> Self:
        """The first requests, `least` or more, as many as have up to so many output tokens together."""
        sofar = accumulate(request.output_tokens for request in self.requests)
        count = max(least, sum(tokens <= most_tokens for tokens in sofar))
        return self.model_copy(update={"requests": self.requests[:count]})

    @property
    def longest_request(self) -> int:
        """Tokens of the longest request, its output included."""
        return max(request.prompt_tokens + request.output_tokens for request in self.requests)

    @property
    def duration_s(self) -> float:
        """Seconds from 0 to the last arrival."""
        return self.requests[-1].arrival_s

    @property
    def rate(self) -> float | None:
        """Mean requests per second, over `duration_s`. None of a closed loop, or if all arrive at 0."""
        return len(self.requests) / self.duration_s if self.duration_s else None

    @cached_property
    def gap_cv(self) -> float | None:
        """Coefficient of variation of the gaps between arrivals: 1 for Poisson. None without any gap."""
        gaps_s = np.diff([request.arrival_s for request in self.starts])
        mean_s = float(gaps_s.mean()) if gaps_s.size else 0.0
        return float(gaps_s.std()) / mean_s if mean_s else None

    @cached_property
    def num_by_class(self) -> Mapping[str, int]:
        found = Counter(request.class_name for request in self.requests)
        return {each.name: found[each.name] for each in self.classes}

    def class_of(self, request: WorkloadRequest) -> RequestClass:
        return next(each for each in self.classes if each.name == request.class_name)

    def scaled(self, *, rate: float) -> Self:
        """The same requests at another mean rate per second: the time axis is stretched, and its pattern stays.

        ValueError if the rate is out of range, or there are no gaps to stretch.
        """
        if not LEAST_RATE <= rate <= MOST_RATE:
            raise FieldError("rate", f"{rate:g}", f"expected {LEAST_RATE:g} to {MOST_RATE:g} requests per second")
        if self.rate is None:
            why = "in a closed loop the ends of requests set the rate" if self.is_closed else "all requests arrive at 0"
            raise FieldError("rate", f"{rate:g}, but {why}")
        whole_s, new_s = self.duration_s, len(self.requests) / rate
        moved = tuple(each.model_copy(update={"arrival_s": each.arrival_s / whole_s * new_s}) for each in self.requests)
        if self.trace is not None:
            return self.replaced(requests=moved, trace=self.trace.model_copy(update={"rate": rate}))
        return self.replaced(requests=moved, arrivals=self.arrivals.at(rate * len(self.starts) / len(moved)))
