"""vLLM's adaptive verification: fixed draft lengths and the adaptive one, predicted from three of the six published.

The published server drafts blocks of seven tokens in one forward and verifies all of them, a fixed number, or as many
as its scheduler chooses. Its forwards are in no op table, so a round's cost is fitted:

    round = forward(rows) + a * (requests - 1) + (b + c * requests, with a draft)

to decoding without a draft and to the draft lengths 1 and 7, together with the acceptance of a draft's tokens. The
lengths between, and the adaptive choice by the control `worth`, are predicted. The control knows the acceptance of a
token by its place in the draft, not the head's confidence in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import exp, log

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from swiftspec.scheduler.controls.control import Demand
from swiftspec.scheduler.controls.worth import Worth
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import Constant, Row

_FACTS = read_facts("adaptive_verification")
ADAPTIVE = "adaptive"
LENGTHS = ("0", "1", "3", "5", "6", "7")  # fixed draft lengths, as the published figures call them
_FITTED_ON = ("0", "1", "7")
_LONGEST = 7
_KNOTS = (1, 8, 32, 128, 512, 1024, 2048)  # rows at which forwards are fitted
_START_MS = (9.0, 1.0, 5.0, 8.0, 15.0, 18.0, 35.0)  # the first forward, and what each further knot adds
_START_COSTS_MS = (0.02, 1.0, 0.01)
_START_ACCEPTANCE = (0.8, 0.95)
_WEIGHT_OF_START = 0.01  # keeps what the figures say nothing about near where it started
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server's rounds: what they cost, and how many of a draft's tokens are accepted.

    forward_s: of the target, at `_KNOTS` rows, linear between. request_s: what each request beyond the first adds.
    draft_s, draft_request_s: of the draft's forward, and what each request adds to it. acceptance: of the first token.
    decay: what a token's acceptance, given the ones before, is multiplied by from place to place.
    """

    forward_s: tuple[float, ...]
    request_s: float
    draft_s: float
    draft_request_s: float
    acceptance: float
    decay: float

    @property
    def survival(self) -> tuple[float, ...]:
        """Probability that a draft's tokens are accepted, by place."""
        return tuple(np.cumprod(self.acceptance * self.decay ** np.arange(_LONGEST)).tolist())

    def verify_s(self, num_sequences: int, num_rows: int, /) -> float:
        """A round that drafts: the block is drafted whole, whatever is verified of it."""
        return self.round_s(num_sequences, num_rows, drafts=True)

    def level_s(self, _level: int, _num_sequences: int, /) -> float:
        """Nothing: no row of the draft has a forward of its own."""
        return 0.0

    def round_s(self, num_sequences: float, num_rows: float, *, drafts: bool) -> float:
        """Seconds of a round. Numbers of requests may be means over time."""
        forward_s = float(np.interp(num_rows, _KNOTS, self.forward_s)) + self.request_s * (num_sequences - 1)
        return forward_s + (self.draft_s + self.draft_request_s * num_sequences if drafts else 0.0)

    def tokens_per_s_per_user(self, scheme: str, num_requests: float) -> float:
        """Speed of each of so many requests."""
        if scheme == ADAPTIVE:
            return self._adaptive(round(num_requests))
        length = int(scheme)
        tokens = 1 + sum(self.survival[:length])
        return tokens / self.round_s(num_requests, num_requests * (length + 1), drafts=length > 0)

    def _adaptive(self, num_requests: int) -> float:
        demands = [Demand(self.survival)] * num_requests
        rows = Worth().rows(demands, costs=self, max_rows=num_requests * (_LONGEST + 1))
        tokens = sum(1 + sum(self.survival[: count - 1]) for count in rows)
        return tokens / num_requests / self.verify_s(num_requests, sum(rows))


@cache
def fitted_server() -> Server:
    """The server that agrees best with the figures without a draft and with the shortest and the longest one."""
    points = [point for scheme in _FITTED_ON for point in _points(scheme)]
    start = np.array(
        [*np.log(_START_MS), *np.log(_START_COSTS_MS), *(log(each / (1 - each)) for each in _START_ACCEPTANCE)]
    )

    def residuals(values: _Array) -> _Array:
        server = _server(values)
        errors = [log(server.tokens_per_s_per_user(name, requests) / speed) for name, requests, speed in points]
        return np.array([*errors, *(_WEIGHT_OF_START * (values - start))])

    return _server(least_squares(residuals, start).x)


def _server(values: _Array) -> Server:
    """Server from unbounded numbers: logarithms of milliseconds, and logits."""
    num_knots = len(_KNOTS)
    forwards_s = np.cumsum(np.exp(values[:num_knots])) / 1e3
    request_s, draft_s, draft_request_s = (np.exp(values[num_knots : num_knots + 3]) / 1e3).tolist()
    acceptance, decay = (1 / (1 + exp(-value)) for value in values[num_knots + 3 :])
    return Server(
        forward_s=tuple(forwards_s.tolist()),
        request_s=request_s,
        draft_s=draft_s,
        draft_request_s=draft_request_s,
        acceptance=acceptance,
        decay=decay,
    )


def _points(scheme: str) -> Iterator[tuple[str, float, float]]:
    """(scheme, requests at once by Little's law, tokens/s of each) at every load."""
    for speed, together in zip(_FACTS["tokens_per_s_per_user"][scheme], _FACTS["tokens_per_s"][scheme], strict=True):
        yield scheme, together / speed, speed


def adaptive_verification_rows() -> tuple[list[Row], list[Constant]]:
    """Rows of the schemes that nothing was fitted to, and the constants they use."""
    server = fitted_server()
    rows = []
    for scheme in (*LENGTHS, ADAPTIVE):
        if scheme in _FITTED_ON:
            continue
        label = "adaptive" if scheme == ADAPTIVE else f"draft length {scheme}"
        for clients, (_, requests, speed) in zip(_FACTS["clients"], _points(scheme), strict=True):
            predicted = server.tokens_per_s_per_user(scheme, requests)
            name = f"deepseek-v4-pro + dspark, 8 b300, {label}, {clients} clients"
            rows.append(Row.unfitted(name, "tokens/s/user", speed, predicted, _FACTS["source"]))
    on = "vLLM's figure of DeepSeek-V4-Pro: no draft, and draft lengths 1 and 7"
    constants = [
        *(
            Constant(name=f"dspark_forward_{count}_s", value=seconds, unit="s", fitted_on=on)
            for count, seconds in zip(_KNOTS, server.forward_s, strict=True)
        ),
        Constant(name="dspark_request_s", value=server.request_s, unit="s", fitted_on=on),
        Constant(name="dspark_draft_s", value=server.draft_s, unit="s", fitted_on=on),
        Constant(name="dspark_draft_request_s", value=server.draft_request_s, unit="s", fitted_on=on),
        Constant(name="dspark_acceptance", value=server.acceptance, unit="1", fitted_on=on),
        Constant(name="dspark_decay", value=server.decay, unit="1", fitted_on=on),
    ]
    return rows, constants


def crossing(shorter: Sequence[float], longer: Sequence[float]) -> float | None:
    """Clients from which on the shorter draft is faster, between the published loads; None if it never is.

    Sequences are speeds at the published loads.
    """
    clients = _FACTS["clients"]
    ahead = [log(one / other) for one, other in zip(shorter, longer, strict=True)]
    for (before, after), (low, high) in zip(pairwise(ahead), pairwise(clients), strict=True):
        if before <= 0 < after:
            return float(low * (high / low) ** (-before / (after - before)))
    return None
