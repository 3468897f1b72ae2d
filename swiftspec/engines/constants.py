"""Fitted constants of engines: few times that no kernel explains, each with the rows it was fitted on.

`tools/fit_engines.py` writes constants.json, and with it sets that were fitted without each model and each source.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

_FILE: Final = Path(__file__).with_name("constants.json")
_MEDIANS: Final = "swiftspec"  # which no public load has measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What an engine adds to its kernels, in seconds."""

    # Of every layer of a forward: gaps between its kernels, and host's work that does not run beside them
    layer_s: float
    # Of every layer with experts, in addition; negative where the tables' experts were timed with more around them
    sparse_layer_s: float
    # Of every layer with weights in fp8, in addition: its inputs are quantised by kernels that no table has
    fp8_layer_s: float
    draft_layer_s: float  # the same of every layer of a draft's forward, which is launched inside a step
    round_s: float  # of every step that drafts and verifies, in addition: comparing, and preparing both models' inputs
    launch_s: float  # least time of a layer in a step that is no recorded graph: its kernels are launched one by one
    # From a request to the engine's queue and from its first token to the client: HTTP and process borders
    request_s: float
    prompt_token_s: float  # of every prompt token on the same way: reading, tokenising
    # Of every token that a step writes, until its client has it: a step's tokens go out one after the other
    token_s: float
    # spread, ttft_spread: standard deviations of the relative error of a predicted latency, and of one until the first
    # token, on models that were not fitted
    spread: float
    ttft_spread: float
    # The same of a gain over plain decoding by a draft whose acceptance is known, of sources that were not fitted
    gain_spread: float
    step_s: float = 0.0  # of every step, where a user has measured it: then no layer adds anything

    def with_host(self, step_s: float) -> "Constants":
        """The same with a user's own host time of a step."""
        return replace(self, step_s=step_s, layer_s=0.0, sparse_layer_s=0.0, fp8_layer_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The constants of an engine from one release on, and what they were fitted on."""

    engine: str
    since: tuple[int, ...]
    constants: Constants
    fitted_on: str
    assumed: tuple[str, ...]


@cache
def fitted_sets(left_out: str | None = None) -> Mapping[str, tuple[Fitted, ...]]:
    """Sets by engine, oldest release first. left_out: `model:NAME` or `source:NAME`; whole sets if nothing is of it."""
    content = json.loads(_FILE.read_text(encoding="utf-8"))
    chosen = content["left_out"].get(left_out, content["all"])
    rounds = content["rounds"].get(left_out, content["rounds"]["all"])
    found: dict[str, list[Fitted]] = {}
    for entry in chosen:
        constants = entry["constants"] | {
            "round_s": rounds["round_s"][entry["engine"]],
            "gain_spread": rounds["gain_spread"],
        }
        fitted = Fitted(
            engine=entry["engine"],
            since=tuple(entry["since"]),
            constants=Constants(**constants),
            fitted_on=entry["fitted_on"],
            assumed=tuple(entry["assumed"]),
        )
        found.setdefault(fitted.engine, []).append(fitted)
    return MappingProxyType({name: tuple(sorted(sets, key=lambda one: one.since)) for name, sets in found.items()})


def constants_of(engine: str, release: tuple[int, ...], *, left_out: str | None = None) -> Constants:
    """Those of the newest set that is no newer than a release; of the oldest one for a release before all.

    An engine that nothing was fitted for has the medians of the others.
    """
    every = fitted_sets(left_out)
    sets = every.get(engine, every[_MEDIANS])
    return next((one for one in reversed(sets) if one.since <= release), sets[0]).constants
