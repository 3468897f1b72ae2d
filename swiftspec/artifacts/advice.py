"""Advice for a server that runs: what it was counted to do, what to change and what that brings."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from swiftspec.artifacts.gain import Gain
from swiftspec.files.document import Document, Facts


class Outcome(StrEnum):
    """Whether something is to be changed, nothing is, or nobody can say so yet."""

    CHANGE = "change"
    LEAVE = "leave it as it is"
    NOT_ENOUGH = "not enough evidence"


class ChangeKind(StrEnum):
    """What a change is of: the words after its value."""

    DRAFT_LENGTH = "draft tokens"
    REQUESTS = "requests at once"
    STEP_TOKENS = "tokens of a step"
    GRAPHS = "tokens of the largest step with a graph"
    PREFIX_BLOCK = "tokens of a block of the prefix cache"
    REPLICAS = "replicas"


class ObservedLoad(Facts):
    """Counts of a server between two readings of its metrics; None is what they do not tell.

    engine: as of `--engine`.
    requests: that ended.
    prompt_tokens, output_tokens: means of these.
    cached_share: of the prompts' tokens.
    present: requests in the server at once, those that wait included: the sum of their times over the seconds.
    waiting: of these.
    ttft_s, tpot_s, e2e_s, itl_s: means; the last one between chunks of tokens.
    tokens_per_step: prompt and output tokens of a step.
    draft_tokens: of a round; 0 without drafts.
    drafts: rounds with drafts. draft_share: share of the rounds that have any.
    survival: shares of the drafts of which at least 1, 2, .. tokens were accepted.
    effective_drafts: drafts of different requests that would tell as much.
    preemptions: requests that gave way.
    unknown: sentences about what could not be known.
    """

    engine: str
    seconds: float = Field(gt=0)
    requests: int = Field(ge=1)
    prompt_tokens: float = Field(gt=0)
    output_tokens: float = Field(gt=0)
    cached_share: float | None = Field(default=None, ge=0, le=1)
    present: float = Field(gt=0)
    waiting: float | None = Field(default=None, ge=0)
    ttft_s: float | None = Field(default=None, ge=0)
    tpot_s: float = Field(gt=0)
    e2e_s: float | None = Field(default=None, ge=0)
    itl_s: float | None = Field(default=None, ge=0)
    tokens_per_step: float | None = Field(default=None, ge=0)
    draft_tokens: int = Field(ge=0)
    drafts: float = Field(ge=0)
    draft_share: float = Field(ge=0, le=1)
    survival: tuple[float, ...] = ()
    effective_drafts: float = Field(ge=0)
    preemptions: float = Field(default=0.0, ge=0)
    cache_tokens: int | None = Field(default=None, ge=1)
    unknown: tuple[str, ...] = ()

    @property
    def survival_errors(self) -> tuple[float, ...]:
        """Standard errors of `survival`."""
        drafts = max(1.0, self.effective_drafts)
        return tuple((share * (1 - share) / drafts) ** 0.5 for share in self.survival)

    @property
    def tokens_per_round(self) -> float:
        """Mean, the bonus token included."""
        return 1 + self.draft_share * sum(self.survival)


class ServerFit(Facts):
    """Model of the server, and how it fits what was counted.

    source: where its steps are from, a phrase. engine: its limits, a clause.
    requests: clients of the closed loop that stands for the load.
    time_factor: of all steps, with which the predicted TPOT is the counted one.
    step_error: relative standard deviation of a step's time.
    ttft_s, tpot_s, e2e_s: predicted, with the factor.
    read_again: tokens of each matched prefix that are read again for the draft.
    """

    source: str
    engine: str
    requests: int = Field(ge=1)
    time_factor: float = Field(gt=0)
    step_error: float = Field(ge=0)
    ttft_s: float
    tpot_s: float
    e2e_s: float
    read_again: int = Field(default=0, ge=0)

    @property
    def is_far(self) -> bool:
        """Whether the factor is so far from 1 that the model may be of something else."""
        return not 0.7 <= self.time_factor <= 1.4


class Change(Facts):
    """A change of the server, and what it brings under the same load.

    value: what `kind` becomes. setting: the same in the engine's words.
    gain: of output tokens/s, and so of the time from a request's arrival to its end.
    ttft_s, tpot_s, tokens_per_s: predicted, the last one of all requests.
    is_free: whether it takes no further devices.
    remark: a sentence.
    """

    kind: ChangeKind
    value: int = Field(ge=0)
    setting: str
    gain: Gain
    ttft_s: float
    tpot_s: float
    tokens_per_s: float
    is_free: bool = True
    remark: str = ""


class LengthAtLoad(Facts):
    """The fastest draft length for a number of requests at once. gain: over the length in use."""

    requests: int = Field(ge=1)
    draft_tokens: int = Field(ge=0)
    gain: float = Field(gt=0)


class Advice(Document):
    """What to change in a server, what `swiftspec advise` writes.

    lengths: draft lengths with their gains; that in use has 1. changes: all else that was tried.
    best: of the changes that take no further devices, the one to make, or that more evidence may confirm.
    needed_requests: that would be enough, where the evidence is not.
    by_load: at half, the same and twice the load.
    schedule: draft lengths by requests at once in the engine's words; empty where one length is best.
    """

    schema_name: ClassVar[str] = "swiftspec.advice"
    schema_version: ClassVar[int] = 1

    server: str
    outcome: Outcome
    observed: ObservedLoad
    fit: ServerFit
    lengths: tuple[Change, ...]
    changes: tuple[Change, ...] = ()
    best: Change | None = None
    needed_requests: int | None = None
    by_load: tuple[LengthAtLoad, ...] = ()
    schedule: str = ""
