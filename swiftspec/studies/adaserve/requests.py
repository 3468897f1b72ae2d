"""Requests of AdaServe's experiment: what the figures of the paper vary, and the lists of its artifact."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftspec.simulator.jobs import Job
from swiftspec.studies.backtest.published import read_facts

_FACTS = read_facts("adaserve")
_SEED = 0
_SPREAD = 0.5  # of the logarithm of a prompt's length
NUM_PROMPTS, NUM_TOKENS = 64, 256  # of the trace that the requests are drafted for


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a point of a figure varies.

    rate: the list of requests, as the paper names it in requests/s; None for the one whose classes peak in turn.
    coding: share of its requests that are for coding; the other two classes have equal parts of the rest.
    scale: limit of the coding requests on the time per token, over a step alone.
    """

    rate: float | None = 4.0
    coding: float = 0.6
    scale: float = 1.2


# By number of the figure, what the value on its axis means. Figures 9 and 12 have the runs of figure 8.
FIGURES: Mapping[int, Callable[[float], Setting]] = {
    8: lambda rate: Setting(rate=rate),
    10: lambda percent: Setting(coding=percent / 100),
    11: lambda scale: Setting(scale=scale),
    14: lambda _: Setting(rate=None),
}


def jobs(setting: Setting, *, step_s: float, windows: slice) -> list[Job]:
    """Requests of a setting: as many as published in every window, log-normal prompts.

    step_s: a model's plain step of one request. windows: those of ten seconds each whose requests are wanted.
    """
    rng, classes = np.random.default_rng(_SEED), _FACTS["classes"]
    arrivals_s, numbers = (_peaks if setting.rate is None else _mixed)(setting, rng, windows)
    num_requests = len(arrivals_s)
    spread = rng.lognormal(-(_SPREAD**2) / 2, _SPREAD, num_requests)  # of mean 1
    outputs = rng.integers(2 * _FACTS["output_tokens"] - NUM_TOKENS, NUM_TOKENS, num_requests, endpoint=True)
    prompts = rng.integers(NUM_PROMPTS, size=num_requests)
    return [
        Job(
            arrival_s=float(arrivals_s[index]),
            prompt_index=int(prompts[index]),
            prompt_tokens=max(2, round(classes[number]["prompt_tokens"] * spread[index])),
            output_tokens=int(outputs[index]),
            tpot_s=classes[number].get("tpot_s", setting.scale * step_s),
        )
        for index, number in enumerate(numbers)
    ]


_Requests = tuple[npt.NDArray[np.float64], npt.NDArray[np.int_]]


def _mixed(setting: Setting, rng: np.random.Generator, windows: slice) -> _Requests:
    """Arrivals of a list, in seconds, and classes at random."""
    name = f"{setting.rate:.1f}"
    counts = _FACTS["requests_by_window"][_FACTS["same_list"].get(name, name)]
    arrivals_s = _arrivals_s(counts[windows], rng)
    others = (1 - setting.coding) / 2
    return arrivals_s, rng.choice(3, size=len(arrivals_s), p=[setting.coding, others, others])


def _peaks(_setting: Setting, rng: np.random.Generator, windows: slice) -> _Requests:
    """Arrivals of the list whose classes peak one after the other, and those classes."""
    by_class = [_arrivals_s(counts[windows], rng) for counts in _FACTS["peaks_by_window"].values()]
    arrivals_s = np.concatenate(by_class)
    order = np.argsort(arrivals_s)
    return arrivals_s[order], np.repeat(np.arange(len(by_class)), [len(each) for each in by_class])[order]


def _arrivals_s(counts: list[int], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return np.concatenate(
        [_FACTS["window_s"] * (index + np.sort(rng.random(count))) for index, count in enumerate(counts)]
    )
