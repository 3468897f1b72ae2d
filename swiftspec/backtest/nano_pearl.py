"""PEARL for 1 to 32 requests with a draft on a device of its own: the two tables of nano-PEARL, on H200s and on L40Ss.

Published for six pairs and four data sets are speeds and the mean run length, in tokens from one rejection to the next.
Inputs are a cell's autoregressive speed and its run length, from which every draft token is accepted with the same
probability, whatever came before. A prediction is that speed times the predicted gain over autoregressive decoding,
prefills included.

Not published is a pair's window, which the engine chose when it started. It is fitted to the tokens per round of AIME
with one request on H200s; AIME is no row. Of the batches, 8 requests and the most are rows; 4 or 16 lie between.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from swiftspec.acceptance import PRIOR, fit_acceptance_model, synthesise
from swiftspec.acceptance.fitting import Ranks
from swiftspec.artifacts.document import ModelRef
from swiftspec.artifacts.timeline import Metrics
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.backtest.published import read_facts
from swiftspec.backtest.rows import Constant, Row
from swiftspec.backtest.served import served
from swiftspec.backtest.speeds import Deployment
from swiftspec.policies import Policy, make_policy
from swiftspec.policies.effects import Role

__all__ = ["FITTED_ON", "Cell", "batch_rows", "cells", "predicted_tokens_per_s", "single_rows", "window", "windows"]

_FACTS = read_facts("nano_pearl")
FITTED_ON = "AIME"
_TABLES = [table["name"] for table in _FACTS["tables"]]
_BATCH = 8
_WINDOWS = range(3, 17)
_ROUNDS, _TOKENS = 100, 200  # that each request was measured for: of PEARL, and autoregressive
_NUM_PROMPTS, _NUM_TOKENS, _SEED = 32, 128, 0
_PREFILL_ROWS = 32768  # the engine's limit
_MODEL = ModelRef(model="synthetic", dtype="bf16")
_INDEPENDENT = PRIOR.model_copy(update={"persistence": 0.0})


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
    """Rows of 8 requests and of the most, for the same data sets."""
    most = {table: max(cell.num_requests for cell in cells() if cell.table == table) for table in _TABLES}
    return [
        _row(cell)
        for cell in cells()
        if cell.num_requests in (_BATCH, most[cell.table]) and cell.dataset != FITTED_ON
    ]


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
        if _is_fitted(cell)
    ]


def _row(cell: Cell) -> Row:
    requests = f"{cell.num_requests} request{'s' if cell.num_requests > 1 else ''}"
    name = f"{cell.target} + {cell.draft}, {cell.dataset}, {cell.target_devices}+1 {cell.table}, pearl, {requests}"
    return Row.unfitted(
        name, "tokens/s", cell.pearl, predicted_tokens_per_s(cell), f"{_FACTS['source']}, {cell.file}"
    )


def predicted_tokens_per_s(cell: Cell) -> float:
    """Speed of all requests together."""
    pearl = _served(cell, make_policy("pearl", num_draft_tokens=window(cell.target, cell.draft)))
    alone = _served(cell, make_policy("autoregressive"))
    rounds = _ROUNDS * pearl.figures.tokens_per_round / (pearl.ttft_s + _ROUNDS * pearl.mean_round_s)
    steps = _TOKENS / (alone.ttft_s + _TOKENS * alone.mean_round_s)
    return cell.autoregressive * rounds / steps


@cache
def window(target: str, draft: str) -> int:
    """Tokens of a pair's window: the one with the published tokens per round on the data set it is fitted on."""
    (cell,) = (one for one in cells() if (one.target, one.draft) == (target, draft) and _is_fitted(one))

    def error(count: int) -> float:
        return abs(_tokens_per_round(cell.acceptance, count) - cell.tokens_per_round)

    return min(_WINDOWS, key=error)


def _is_fitted(cell: Cell) -> bool:
    return (cell.table, cell.num_requests, cell.dataset) == ("H200", 1, FITTED_ON)


def _tokens_per_round(acceptance: float, count: int) -> float:
    """PEARL's tokens per round in closed form, for positions that are accepted independently of each other.

    A window that is accepted whole gives `count` tokens; one that is not, the accepted ones and the bonus token, and a
    round that verifies a single token follows.
    """
    whole = acceptance**count
    return (1 - whole) / ((1 - acceptance) * (1 - whole + acceptance))


def _served(cell: Cell, policy: Policy) -> Metrics:
    return _simulated(
        cell.device,
        cell.target,
        cell.draft,
        cell.target_devices,
        policy,
        cell.num_requests,
        _FACTS["prompt_tokens"][cell.dataset],
        0.5 if policy.name == "autoregressive" else cell.acceptance,
    )


@cache
def _simulated(
    device: str,
    target: str,
    draft: str,
    target_devices: int,
    policy: Policy,
    num_requests: int,
    prompt_tokens: int,
    acceptance: float,
) -> Metrics:
    machine: Mapping[str, Any] = {"device": device, "target": target, "draft": draft, "quant": "bf16"}
    deployment = Deployment.of({**machine, "num_devices": target_devices + 1})
    degrees = {Role.TARGET: target_devices}
    if policy.name != "autoregressive":
        degrees[Role.DRAFT] = 1
    return served(
        deployment.profile.latencies,
        _trace(acceptance),
        policy,
        degrees,
        num_requests=num_requests,
        num_jobs=num_requests if num_requests > 1 else _NUM_PROMPTS // 2,
        prompt_tokens=prompt_tokens,
        output_tokens=_NUM_TOKENS,
        prefill_rows=_PREFILL_ROWS,
    )


@cache
def _trace(acceptance: float) -> AcceptanceTrace:
    """Texts on which every draft token is accepted with this probability."""
    fit = fit_acceptance_model([Ranks(values=(acceptance,))], prior=_INDEPENDENT, fields=("mean_logit",))
    return synthesise(
        fit.acceptance_model,
        num_prompts=_NUM_PROMPTS,
        prompt_length=1,
        num_tokens=_NUM_TOKENS,
        seed=_SEED,
        target=_MODEL,
        draft=_MODEL,
        num_candidates=1,
    )
