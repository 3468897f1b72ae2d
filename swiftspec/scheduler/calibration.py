"""Calibration of drafts: the probability that a row is accepted, given the draft's own probability of its path.

A draft may be surer than it is right, or less sure, as one is that was trained on a distribution of which the target
takes the likeliest token. Learnt are a power of the probability, of all rows, and by how much rows about as likely as
this one were accepted more often or less often than that says.
"""

from collections.abc import Collection, Sequence
from math import exp

_MEMORY = 0.995  # about the last 200 verifications, as of survival by row number
_TRUST = 5.0  # accepted rows of a class that weigh as much as the power
_WIDTH = 0.25  # of a class, in nats
_NUM_CLASSES = 32  # down to a probability of 0.0003
_FIT_EVERY = 16  # verifications
_LEAST_POWER, _MOST_POWER = 0.1, 4.0
_NUM_HALVINGS = 10


class Calibration:
    """Estimates for the requests of one device group."""

    def __init__(self) -> None:
        # By class of the log-probability: rows, the sum of their log-probabilities, those expected and those accepted.
        self._rows = [0.0] * _NUM_CLASSES
        self._log_probs = [0.0] * _NUM_CLASSES
        self._expected = [0.0] * _NUM_CLASSES
        self._accepted = [0.0] * _NUM_CLASSES
        self._power = 1.0
        self._num_noted = 0

    def note(self, log_probs: Sequence[float], accepted: Collection[int]) -> None:
        """Add a verification. log_probs: of its rows after the root. accepted: numbers of rows that were."""
        for sums in (self._rows, self._log_probs, self._expected, self._accepted):
            sums[:] = [_MEMORY * each for each in sums]
        for row, log_prob in enumerate(log_probs, start=1):
            which = _class_of(log_prob)
            self._rows[which] += 1.0
            self._log_probs[which] += log_prob
            self._expected[which] += exp(self._power * log_prob)
            self._accepted[which] += row in accepted
        self._num_noted += 1
        if self._num_noted % _FIT_EVERY == 0:
            self._power = self._fitted()

    def of(self, log_probs: Sequence[float]) -> tuple[float, ...]:
        """Probability that each row is accepted; it never rises, since rows come best first."""
        least, found = 1.0, list[float]()
        for log_prob in log_probs:
            which = _class_of(log_prob)
            factor = (self._accepted[which] + _TRUST) / (self._expected[which] + _TRUST)
            least = min(least, factor * exp(self._power * log_prob))
            found.append(least)
        return tuple(found)

    def _fitted(self) -> float:
        """The power that expects as many accepted rows as there were."""
        total, low, high = sum(self._accepted), _LEAST_POWER, _MOST_POWER
        means = [(rows, sums / rows) for rows, sums in zip(self._rows, self._log_probs, strict=True) if rows]
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            expected = sum(rows * exp(middle * log_prob) for rows, log_prob in means)
            low, high = (middle, high) if expected > total else (low, middle)
        return (low + high) / 2


def _class_of(log_prob: float) -> int:
    return min(_NUM_CLASSES - 1, int(-log_prob / _WIDTH))
