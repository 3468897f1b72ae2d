"""Experts that some rows touch, which is what a mixture's products read.

With independent routing t rows touch N(t) = E (1 - (1 - k/E)^t) of E experts, k of them each. Consecutive tokens of one
text agree more often than that: the rows of one sequence touch N'(r) = k + c (N(r) - k), and sequences are independent.
"""

from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from swiftspec.errors import FieldError
from swiftspec.timing.latency import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Agreement between the experts of consecutive tokens."""

    # c: 1 if each token's experts are drawn independently, 0 if all rows of a sequence have the same ones
    correlation: float
    source: str  # one clause about where it is from
    provenance: Provenance = Provenance.ASSUMED

    def __post_init__(self) -> None:
        if not 0 <= self.correlation <= 1:
            raise FieldError("expert_correlation", f"{self.correlation:g}", "expected 0 to 1")

    def __str__(self) -> str:
        """A clause: `experts of consecutive tokens agree with c = 0.57, given`."""
        return f"experts of consecutive tokens agree with c = {self.correlation:.3g}, {self.source}"

    def touched(self, rows: int, *, sequences: int, num_experts: int, num_active: int) -> float:
        """Experts that `rows` rows of equally long sequences touch."""
        alone = independent(rows / sequences, num_experts=num_experts, num_active=num_active)
        together = num_active + self.correlation * (alone - num_active)
        untouched: float = (1 - together / num_experts) ** sequences
        return num_experts * (1 - untouched)


def independent(rows: float, *, num_experts: int, num_active: int) -> float:
    """Experts that rows with independent routing touch: N(t)."""
    untouched: float = (1 - num_active / num_experts) ** rows
    return num_experts * (1 - untouched)


def on_fullest(touched: float, *, num_experts: int, num_devices: int) -> float:
    """Touched experts of the device that has most of them, in the mean: each device holds as many, at random."""
    held, share = num_experts / num_devices, touched / num_experts
    deviation = sqrt(held * share * (1 - share) * (1 - 1 / num_devices))
    # The largest of as many normal numbers, after Blom.
    largest = NormalDist().inv_cdf((num_devices - 0.375) / (num_devices + 0.25))
    return min(held, touched, held * share + deviation * largest)


ASSUMED_ROUTING = Routing(
    correlation=0.57,
    source=(
        "assumed: on its own model, Cohere (blog, 21 April 2026) found that 4 consecutive tokens load 2.5 times the "
        "experts of one"
    ),
)
