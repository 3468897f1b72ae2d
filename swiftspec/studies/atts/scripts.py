"""Scripts of simulated questions: how long segments are, what they score, and when samples end. Replayed or drawn."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from swiftspec.artifacts.distributions import Lengths
from swiftspec.studies.atts.document import AttsOptions, AttsRun, AttsTurn, Ending
from swiftspec.workload.generate import draw_lengths

# Samples of 1600 that had a first turn, a second and so on, and how alike those of a question are: results of the
# authors' code (github.com/menik1126/Asynchronous-Test-Time-Scaling, MATH500, R1-Distill-Llama-8B and QwQ-32B, 100
# questions of 16 samples). Of the variance of the number of turns, 85 % is between questions.
SURVIVORS = (1600, 1142, 703, 525, 395, 313, 267, 227, 194, 166, 141, 122, 101, 90, 79)
CORRELATION = 0.9


class TurnScript(NamedTuple):
    """A turn. target_tokens: what the target writes, if it takes over."""

    draft_tokens: int
    score: float
    target_tokens: int


class SampleScript(NamedTuple):
    """A sample. ending: why it ends after these turns."""

    turns: tuple[TurnScript, ...]
    ending: Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionScript:
    """A question and its samples."""

    question_id: str
    prompt_tokens: int
    samples: tuple[SampleScript, ...]


class Scripts(NamedTuple):
    """Questions, and calibration scores by question."""

    questions: list[QuestionScript]
    calibration: Mapping[str, tuple[float, ...]]


def replayed_scripts(run: AttsRun, *, seed: int = 0) -> Scripts:
    """Scripts of a run's questions.

    What the target would have written in turns that it did not take over is drawn from those that it did; without any
    it is as long as the draft's segment.
    """
    written = [
        turn.target_tokens
        for question in run.questions
        for sample in question.samples
        for turn in sample.turns
        if turn.is_taken_over
    ]
    rng = np.random.default_rng([seed, 0])

    def scripted(turn: AttsTurn) -> TurnScript:
        others = turn.target_tokens if turn.is_taken_over else int(rng.choice(written or [turn.draft_tokens]))
        return TurnScript(turn.draft_tokens, turn.score, others)

    questions = [
        QuestionScript(
            question_id=question.question_id,
            prompt_tokens=question.prompt_tokens,
            samples=tuple(
                SampleScript(tuple(map(scripted, sample.turns)), sample.ending) for sample in question.samples
            ),
        )
        for question in run.questions
    ]
    return Scripts(questions, run.calibration)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Distributions of what is not known of questions.

    Parameters
    ----------
    draft_lengths, target_lengths : Lengths
        Tokens of a segment, cut to the longest that is allowed.
    survivors : tuple of int
        Samples with at least one turn, with two and so on.
    correlation : float
        Of the samples of a question, between the normal scores of their numbers of turns; 0 to 1.
    """

    draft_lengths: Lengths
    target_lengths: Lengths
    survivors: tuple[int, ...] = SURVIVORS
    correlation: float = CORRELATION


def drawn_scripts(questions: Sequence[tuple[str, int]], options: AttsOptions, drawing: Drawing) -> Scripts:
    """Scripts of questions, of each of which the id and the tokens of the prompt are known.

    Scores are exchangeable with those of the calibration: only their order counts, so that any distribution will do.
    """
    scripts, calibration = [], {}
    for number, (question_id, prompt_tokens) in enumerate(questions):
        rng = np.random.default_rng([options.seed, 1, number])
        turns = _numbers_of_turns(options, drawing, rng)
        lengths = [
            np.minimum(most, draw_lengths(wanted, sum(turns), rng, field=field)).tolist()
            for wanted, most, field in (
                (drawing.draft_lengths, options.draft_tokens, "draft_lengths"),
                (drawing.target_lengths, options.target_tokens, "target_lengths"),
            )
        ]
        scores, others = (1.0 + rng.standard_exponential(count) for count in (sum(turns), options.num_samples))
        left = iter([TurnScript(*each) for each in zip(lengths[0], scores.tolist(), lengths[1], strict=True)])
        samples = tuple(_sample_of(left, count, options) for count in turns)
        scripts.append(QuestionScript(question_id=question_id, prompt_tokens=prompt_tokens, samples=samples))
        calibration[question_id] = tuple(others.tolist())
    return Scripts(scripts, calibration)


def _sample_of(turns: Iterator[TurnScript], count: int, options: AttsOptions) -> SampleScript:
    ending = Ending.TURNS if count == options.num_turns else Ending.MARKER
    return SampleScript(tuple(islice(turns, count)), ending)


def _numbers_of_turns(options: AttsOptions, drawing: Drawing, rng: np.random.Generator) -> list[int]:
    """Of each sample: those of a question are alike, as their normal scores are."""
    shared, own = rng.standard_normal(), rng.standard_normal(options.num_samples)
    scores = drawing.correlation**0.5 * shared + (1 - drawing.correlation) ** 0.5 * own
    shares = [survivors / drawing.survivors[0] for survivors in drawing.survivors]
    ranks = [NormalDist().cdf(score) for score in scores.tolist()]
    return [min(options.num_turns, sum(share > rank for share in shares)) for rank in ranks]
