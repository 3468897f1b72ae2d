"""Run of asynchronous test-time scaling (ATTS): how questions were sampled, when, and by whom; see docs/studies.md."""

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from swiftspec.artifacts.load_metrics import Percentiles
from swiftspec.files.document import Document, Facts
from swiftspec.policies.effects import Role

END_MARKER = r"\\boxed\{.*?\}"

_Count = Annotated[int, Field(ge=1)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Time = Annotated[float, Field(ge=0)]


class Rule(StrEnum):
    """Rule by which calibration scores and a budget become a threshold."""

    CONFORMAL = "conformal"  # the (n + 1) quantile: at most the budget is taken over
    SHARE = "share"  # of the n calibration scores: the rule of the authors' code, which may exceed the budget


class Ending(StrEnum):
    """Why a sample ends."""

    MARKER = "marker"  # its answer has the end marker
    END_OF_SEQUENCE = "end-of-sequence"  # of the model that wrote last
    TURNS = "turns"  # it has had all of them
    CONTEXT = "context"  # its text has outgrown a server


class AttsOptions(Facts):
    """How questions are sampled; defaults are those of the authors' code.

    Parameters
    ----------
    num_samples : int
        Samples of a question, all at once.
    budget : float
        Share of the draft's segments that the target takes over.
    rule : Rule
    is_per_question : bool
        A threshold from each question's own calibration scores, instead of one from all.
    is_barrier : bool
        The highest scores of every turn are taken over, for which all samples wait for each other, instead of those
        above a threshold.
    num_turns : int
        Turns of a sample at most.
    draft_tokens, target_tokens : int
        Longest segment of each.
    draft_calls, target_calls : int
        Requests at once; scores are requests to the target, too.
    end_marker : str
        Regular expression. A sample ends after the turn in which its answer has it.
    temperature : float
    seed : int
    """

    num_samples: _Count = 16
    budget: _Share = 0.4
    rule: Rule = Rule.CONFORMAL
    is_per_question: bool = False
    is_barrier: bool = False
    num_turns: _Count = 15
    draft_tokens: _Count = 500
    target_tokens: _Count = 500
    draft_calls: _Count = 16
    target_calls: _Count = 4
    end_marker: str = END_MARKER
    temperature: Annotated[float, Field(ge=0)] = 0.8
    seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("end_marker")
    @classmethod
    def _is_regular(cls, marker: str) -> str:
        try:
            re.compile(marker)
        except re.error as error:
            raise ValueError(f"expected a regular expression ({error})") from None
        return marker

    def calls(self, role: Role) -> int:
        """Requests at once to a server."""
        return self.draft_calls if role is Role.DRAFT else self.target_calls


class AttsTurn(Facts):
    """A turn. Times are since the question began; each includes the wait for a place at the server.

    Parameters
    ----------
    draft_tokens, target_tokens : int
        What each wrote; 0 of a target that did not take over.
    score : float
        Perplexity of the draft's segment under the target.
    is_taken_over : bool
    began_s, drafted_s, scored_s, selected_s, ended_s : float
        From the begin of the draft's segment: its end, its score, the decision, the end of the target's segment.
    """

    draft_tokens: _Count
    score: Annotated[float, Field(gt=0)]
    is_taken_over: bool
    target_tokens: Annotated[int, Field(ge=0)] = 0
    began_s: _Time
    drafted_s: _Time
    scored_s: _Time
    selected_s: _Time
    ended_s: _Time


class AttsSample(Facts):
    """A sample. ended_s: since the question began. answer: its text after the question; none if it was simulated."""

    turns: tuple[AttsTurn, ...]
    ending: Ending
    ended_s: _Time
    answer: str = ""


class AttsQuestion(Facts):
    """A question. prompt_tokens: as the target counts them."""

    question_id: str
    prompt_tokens: _Count
    samples: Annotated[tuple[AttsSample, ...], Field(min_length=1)]

    @property
    def makespan_s(self) -> float:
        """Time of its last sample."""
        return max(sample.ended_s for sample in self.samples)


class AttsFigures(Facts):
    """Figures of a run.

    Parameters
    ----------
    num_samples : int
    turns : float
        Mean of a sample.
    survivors : tuple of int
        Samples that had at least one turn, two turns and so on.
    taken_over : float
        Share of the turns.
    draft_tokens, target_tokens : float
        Mean of a segment.
    sample_s : Percentiles
        Times of samples.
    question_s : Percentiles
        Times of whole questions.
    total_s : float
        Of all questions, one after another.
    """

    num_samples: int
    turns: float
    survivors: tuple[int, ...]
    taken_over: float
    draft_tokens: float
    target_tokens: float
    sample_s: Percentiles
    question_s: Percentiles
    total_s: float

    @classmethod
    def of(cls, questions: Sequence[AttsQuestion]) -> Self:
        """Of at least one question."""
        samples = [sample for question in questions for sample in question.samples]
        turns = [turn for sample in samples for turn in sample.turns]
        counts = np.array([len(sample.turns) for sample in samples])
        target = [turn.target_tokens for turn in turns if turn.is_taken_over]
        return cls(
            num_samples=len(samples),
            turns=float(counts.mean()),
            survivors=tuple(int((counts >= turn).sum()) for turn in range(1, int(counts.max(initial=0)) + 1)),
            taken_over=len(target) / max(1, len(turns)),
            draft_tokens=sum(turn.draft_tokens for turn in turns) / max(1, len(turns)),
            target_tokens=sum(target) / max(1, len(target)),
            sample_s=Percentiles.of(sample.ended_s for sample in samples),
            question_s=Percentiles.of(question.makespan_s for question in questions),
            total_s=sum(question.makespan_s for question in questions),
        )


class AttsRun(Document):
    """Questions sampled by a draft's and a target's server, measured or simulated.

    Attributes
    ----------
    is_simulated : bool
    target, draft : str
        The servers, in words.
    options : AttsOptions
    calibration : dict
        Calibration scores by question; with a barrier perhaps none.
    threshold : float or None
        Of all questions; None with thresholds per question, with a barrier, or if it is infinite.
    figures : AttsFigures
    questions : tuple of AttsQuestion
    """

    schema_name: ClassVar[str] = "swiftspec.atts"
    schema_version: ClassVar[int] = 1

    is_simulated: bool
    target: str
    draft: str
    options: AttsOptions
    calibration: dict[str, tuple[float, ...]]
    threshold: float | None = None
    figures: AttsFigures
    questions: Annotated[tuple[AttsQuestion, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _counts(self) -> Self:
        for question in self.questions:
            if len(question.samples) != self.options.num_samples:
                raise ValueError(
                    f"questions: {question.question_id} has {len(question.samples)} samples; "
                    f"expected {self.options.num_samples}"
                )
        return self
