"""Selection of the samples that are taken over: each by its own score, or the highest ones of a turn. Pure.

A driver tells what its samples ask; it is told who may go on, and with which answer. That may be others than the one
that asked, who were waiting for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from swiftspec.studies.atts.conformal import threshold
from swiftspec.studies.atts.document import AttsOptions

Answers = Mapping[int, bool | None]  # by sample


class Selection(Protocol):
    """Samples of one question, numbered from 0."""

    def select(self, sample: int, score: float) -> Answers:
        """A sample asks whether it is taken over: those that may go on, and whether they are."""

    def next_turn(self, sample: int) -> Answers:
        """A sample has ended its turn: those that may begin the next one."""

    def leave(self, sample: int) -> Answers:
        """A sample has ended: those that waited for it."""


class ByThreshold:
    """Without a barrier: whoever scores above a threshold is taken over, and nobody waits."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def select(self, sample: int, score: float) -> Answers:
        """As `Selection.select`."""
        return {sample: score > self._threshold}

    def next_turn(self, sample: int) -> Answers:
        """As `Selection.next_turn`."""
        return {sample: None}

    def leave(self, _: int) -> Answers:
        """As `Selection.leave`."""
        return {}


class Barrier:
    """With a barrier: of the samples of a turn those with the highest scores, as many as the budget allows.

    What a turn's share leaves of a sample is the next one's, so that the budget is kept although samples come whole.
    """

    def __init__(self, num_samples: int, budget: float) -> None:
        self._budget = budget
        self._running = set(range(num_samples))
        self._scores: dict[int, float] = {}
        self._ended: set[int] = set()  # of this turn
        self._num_scored = self._num_taken = 0

    def select(self, sample: int, score: float) -> Answers:
        """As `Selection.select`."""
        self._scores[sample] = score
        return self._selected()

    def next_turn(self, sample: int) -> Answers:
        """As `Selection.next_turn`."""
        self._ended.add(sample)
        return self._next()

    def leave(self, sample: int) -> Answers:
        """As `Selection.leave`."""
        self._running.remove(sample)
        return self._selected() or self._next()

    def _selected(self) -> Answers:
        if self._scores.keys() != self._running:
            return {}
        self._num_scored += len(self._scores)
        most = max(0, round(self._budget * self._num_scored) - self._num_taken)
        ranked = sorted(self._scores, key=lambda sample: (-self._scores[sample], sample))
        taken = set(ranked[:most])
        self._num_taken += len(taken)
        self._scores.clear()
        return {sample: sample in taken for sample in sorted(ranked)}

    def _next(self) -> Answers:
        if self._ended != self._running:
            return {}
        everyone = sorted(self._ended)
        self._ended.clear()
        return dict.fromkeys(everyone)


@dataclass(frozen=True, slots=True)
class Selections:
    """Selections of questions, by what is known before they are sampled.

    Parameters
    ----------
    options : AttsOptions
    calibration : mapping
        Calibration scores by question; with a barrier none are needed.

    Raises
    ------
    ValueError
        If scores are missing.
    """

    options: AttsOptions
    calibration: Mapping[str, Sequence[float]]

    @property
    def threshold(self) -> float | None:
        """Of all questions; None if each has its own, or there is a barrier."""
        if self.options.is_barrier or self.options.is_per_question:
            return None
        scores = [score for scores in self.calibration.values() for score in scores]
        if not scores:
            raise ValueError("calibration is missing; expected that of a run without a barrier")
        return self._threshold(scores)

    def of(self, question_id: str) -> Selection:
        """A question's, to be used once."""
        if self.options.is_barrier:
            return Barrier(self.options.num_samples, self.options.budget)
        if (shared := self.threshold) is not None:
            return ByThreshold(shared)
        if not self.calibration.get(question_id):
            raise ValueError(f"calibration has no scores of question {question_id}; expected some of every question")
        return ByThreshold(self._threshold(self.calibration[question_id]))

    def _threshold(self, scores: Sequence[float]) -> float:
        return threshold(scores, self.options.budget, self.options.rule)
