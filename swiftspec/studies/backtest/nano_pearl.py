"""PEARL for 1 to 32 requests with a draft on a device of its own: the two tables of nano-PEARL, on H200s and on L40Ss.

Published for six pairs and four data sets are speeds and the mean run length, in tokens from one rejection to the next.
Inputs are a cell's autoregressive speed and its run length, from which every draft token is accepted with the same
probability, whatever came before. A prediction is that speed times the predicted gain over autoregressive decoding.

One request is simulated as in plans. Batches are not: there all requests advance in lock step, as plans' do not, so a
round of the profile's steps is as long as its verification or its drafts, and the prefills of both modes count.

Not published is a pair's window, which the engine chose when it started. It is fitted to the tokens per round of AIME
with one request on H200s; AIME is no row.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from swiftspec.studies.backtest.published import read_facts
from swiftspec.studies.backtest.rows import Constant, Row
from swiftspec.studies.backtest.speeds import Deployment, decoding
from swiftspec.studies.backtest.timed import INDEPENDENT, independent
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase

_FACTS = read_facts("nano_pearl")
FITTED_ON = "AIME"
_WINDOWS = range(3, 17)
_ROUNDS, _TOKENS = 100, 200  # that each request was measured for: of PEARL, and autoregressive


class Cell(NamedTuple):
    """A published cell. Speeds are tokens/s of all requests; run_length: mean tokens from one rejection to the next."""

    table: str
    file: str
    device: str
    target_devices: int
    target: str
    draft: str
    num_requests: int
    dataset: str
    autoregressive: float
    pearl: float
    run_length: float
    tokens_per_round: float

    @property
    def acceptance(self) -> float:
        """Probability of a draft token, the same everywhere."""
        return 1 - 1 / self.run_length

    @property
    def deployment(self) -> Deployment:
        """Target and draft on devices of their own."""
        return Deployment(
            device=self.device,
            target=self.target,
            draft=self.draft,
            quant="bf16",
            num_devices=self.target_devices + 1,
        )

    @property
    def is_fitted(self) -> bool:
        """Whether the pair's window is fitted to it."""
        return (self.table, self.num_requests, self.dataset) == ("H200", 1, FITTED_ON)


class Rounds(NamedTuple):
    """PEARL's rounds in closed form: their mean tokens, and rows of a verification."""

    tokens: float
    rows: float

    @classmethod
    def of(cls, acceptance: float, count: int) -> "Rounds":
        """Rounds with a window of `count` tokens, each accepted with this probability.

        A window that is accepted whole gives `count` tokens, and the next one is pending. After any other, a round
        verifies a single row.
        """
        whole = acceptance**count
        pending = acceptance / (1 - whole + acceptance)  # share of rounds that verify a window
        tokens = (1 - whole) / ((1 - acceptance) * (1 - whole + acceptance))
        return cls(tokens, 1 + pending * (count - 1))


def cells() -> Iterator[Cell]:
    """All cells of both tables."""
    for table in _FACTS["tables"]:
        machine = (table["name"], table["file"], table["device"], table["target_devices"])
        for pair in table["pairs"]:
            for requests, by_dataset in pair["requests"].items():
                for dataset, figures in zip(_FACTS["datasets"], by_dataset, strict=True):
                    yield Cell(*machine, pair["target"], pair["draft"], int(requests), dataset, *figures)


def single_rows() -> list[Row]:
    """Rows of one request, for all data sets but the one that the windows are fitted on."""
    return [_row(cell) for cell in cells() if cell.num_requests == 1 and cell.dataset != FITTED_ON]


def batch_rows() -> list[Row]:
    """Rows of several requests, for the same data sets."""
    return [_row(cell) for cell in cells() if cell.num_requests > 1 and cell.dataset != FITTED_ON]


def windows() -> list[Constant]:
    """The fitted windows."""
    return [
        Constant(
            name=f"nano-PEARL's window, {cell.target} + {cell.draft}",
            value=window(cell.target, cell.draft),
            unit="tokens",
            fitted_on=f"tokens per round of {FITTED_ON}, one request, H200",
        )
        for cell in cells()
        if cell.is_fitted
    ]


@cache
def window(target: str, draft: str) -> int:
    """Tokens of a pair's window: the one with the published tokens per round on the data set it is fitted on."""
    (cell,) = (one for one in cells() if (one.target, one.draft) == (target, draft) and one.is_fitted)
    return min(_WINDOWS, key=lambda count: abs(Rounds.of(cell.acceptance, count).tokens - cell.tokens_per_round))


def predicted_gain(cell: Cell) -> float:
    """Speed with PEARL over autoregressive speed."""
    return _simulated_gain(cell) if cell.num_requests == 1 else _lock_step_gain(cell)


def _row(cell: Cell) -> Row:
    requests = f"{cell.num_requests} request{'s' if cell.num_requests > 1 else ''}"
    name = f"{cell.target} + {cell.draft}, {cell.dataset}, {cell.target_devices}+1 {cell.table}, pearl, {requests}"
    predicted = cell.autoregressive * predicted_gain(cell)
    return Row.unfitted(name, "tokens/s", cell.pearl, predicted, f"{_FACTS['source']}, {cell.file}")


def _simulated_gain(cell: Cell) -> float:
    target = {Role.TARGET: cell.target_devices}
    policy = make_policy("pearl", num_draft_tokens=window(cell.target, cell.draft))
    acceptance_model = independent(cell.acceptance)
    pearl = decoding(cell.deployment, acceptance_model, policy, target | {Role.DRAFT: 1})
    alone = decoding(cell.deployment, INDEPENDENT, make_policy("autoregressive"), target)
    return pearl.decoding_tokens_per_s / alone.decoding_tokens_per_s


def _lock_step_gain(cell: Cell) -> float:
    """Gain if all requests of a batch begin and end every round together."""
    profile, requests = cell.deployment.profile, cell.num_requests
    prompt_tokens = _FACTS["prompt_tokens"][cell.dataset]

    def step_s(phase: Phase, degree: int, rows: float, context: int) -> float:
        role = Role.DRAFT if phase is Phase.EXPAND else Role.TARGET
        return profile.step(StepKey(role, phase, degree, round(rows), context)).mean_s

    count = window(cell.target, cell.draft)
    rounds, context = Rounds.of(cell.acceptance, count), prompt_tokens + _TOKENS // 2
    prefill_s = step_s(Phase.PREFILL, cell.target_devices, requests * prompt_tokens, 0)
    verify_s = step_s(Phase.VERIFY, cell.target_devices, requests * rounds.rows, context)
    draft_s = count * step_s(Phase.EXPAND, 1, requests, context)
    alone_s = step_s(Phase.VERIFY, cell.target_devices, requests, context)
    pearl = _ROUNDS * rounds.tokens / (prefill_s + _ROUNDS * max(verify_s, draft_s))
    return pearl * (prefill_s + _TOKENS * alone_s) / _TOKENS
