"""Measured routing: the experts that consecutive tokens touched in a recorded trace, and the correlation in them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.costmodel.routing import Routing, independent
from swiftspec.timing.latency import Provenance

LONGEST_WINDOW = 16  # tokens: most verifications have fewer rows


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRouting:
    """Experts that windows of 1, 2, 3 .. consecutive tokens touched in a layer."""

    # num_experts, num_active: E and k: routed experts of each layer, and those of one token
    num_experts: int
    num_active: int
    touched: tuple[float, ...]  # mean over layers and positions, by the window's tokens; the first is k
    source: str  # one clause about the trace that it was counted in

    @property
    def correlation(self) -> float:
        """c of N' = k + c (N - k) by least squares over the windows, within 0 and 1."""
        further = self._independently_further
        found = float(further @ (np.array(self.touched) - self.num_active) / (further @ further))
        return min(max(found, 0.0), 1.0)

    @property
    def largest_miss(self) -> float:
        """Experts by which the fit misses a window's mean, at most."""
        fitted = self.num_active + self.correlation * self._independently_further
        return float(np.abs(fitted - self.touched).max())

    def routing(self) -> Routing:
        """The same as forwards are priced with."""
        return Routing(correlation=self.correlation, source=self.source, provenance=Provenance.MEASURED)

    @property
    def _independently_further(self) -> np.ndarray:
        experts = {"num_experts": self.num_experts, "num_active": self.num_active}
        rows = range(1, len(self.touched) + 1)
        return np.array([independent(count, **experts) - self.num_active for count in rows])


def measured_routing(trace: AcceptanceTrace, *, file: str) -> MeasuredRouting | None:
    """Routing of a trace's target, from `file`; None if routes are missing or cannot tell: all active, or one token."""
    routes = [prompt.routes for prompt in trace.prompts if prompt.routes is not None]
    if not routes:
        return None
    touched = mean_touched(routes, num_experts=trace.num_experts)
    num_active = routes[0].shape[-1]
    if len(touched) < 2 or num_active == trace.num_experts:
        return None
    num_tokens = sum(map(len, routes))
    return MeasuredRouting(
        num_experts=trace.num_experts,
        num_active=num_active,
        touched=touched,
        source=f"measured over {num_tokens} output tokens (prompts: {len(routes)}) of {trace.target} in {file}",
    )


def mean_touched(routes: Sequence[np.ndarray], *, num_experts: int, longest: int = LONGEST_WINDOW) -> tuple[float, ...]:
    """Mean distinct experts of windows of 1, 2 .. tokens, over layers and all windows within one sequence.

    routes: sequence of integer array (T, layers, k). Of each sequence. longest: tokens of the longest window; there are
    none longer than the longest sequence.
    """
    longest = min(longest, max(map(len, routes)))
    totals, counts = np.zeros(longest), np.zeros(longest)
    for sequence in filter(len, routes):
        firsts = _first_uses(sequence, num_experts, longest)
        for size in range(1, min(longest, len(sequence)) + 1):
            num_windows = len(sequence) - size + 1
            totals[size - 1] += sum(firsts[place : place + num_windows, place].sum() for place in range(size))
            counts[size - 1] += num_windows
    return tuple((totals / counts / routes[0].shape[1]).tolist())


def _first_uses(routes: np.ndarray, num_experts: int, longest: int) -> np.ndarray:
    """Experts of a token, in all layers, that none of the `place` tokens before it has: integers (T, place)."""
    num_tokens, num_layers, num_active = routes.shape
    latest = np.full((num_layers, num_experts), -longest)  # token that last had each expert
    ages = np.empty((num_tokens, num_layers * num_active), dtype=np.intp)
    for token, chosen in enumerate(routes.astype(np.intp)):
        ages[token] = (token - np.take_along_axis(latest, chosen, axis=1)).ravel()
        np.put_along_axis(latest, chosen, token, axis=1)
    return np.stack([(ages > place).sum(axis=1) for place in range(longest)], axis=1)
