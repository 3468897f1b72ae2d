"""Time budget of the demo: how much of it fits, given a gauge of the machine. Pure: measures nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from swiftspec.artifacts.profile import PASSES
from swiftspec.demo.gauge import Gauge
from swiftspec.profiler.effort import SHORT, Effort, layouts_on, pass_seconds
from swiftspec.profiler.grids import CONTEXTS, DRAFT_ROWS, SWEEP_REPEATS, TARGET_ROWS

__all__ = [
    "LADDER",
    "STAGES",
    "Choice",
    "Scope",
    "choose",
    "closing_seconds",
    "left_out",
    "restricted",
    "stage_seconds",
]

STAGES = ("profile", "trace", "plan", "run", "validate")
_MARGIN = 1.15  # estimates are sometimes too low by this factor
_TOKENS_PER_ROUND = 4.0  # on the bundled pair's text
_TREE_ROWS, _DRAFTS_PER_ROUND = 8, 4  # a round costs a verification and some draft forwards
_DRAFTS_PER_VERIFICATION = 4  # in a profile, during each forward of the target
# Time other than forwards, for importing torch and forking, in units of one prompt's simulation: both scale alike with
# the machine's speed.
_START_SIMULATIONS = 600
# Prompts that a search simulates, counted as whole ones: a fixed number, and some for every traced prompt.
_SEARCH_SIMULATIONS, _FINAL_SIMULATIONS_PER_PROMPT = 2900, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Size of the demo.

    layers: layers of the inflated target.
    passes: number of times that everything is profiled, each on new processes.
    traced, validated: number of prompts.
    repeats: repetitions of the validation.
    """

    layers: int
    passes: int
    traced: int
    validated: int
    repeats: int

    @property
    def effort(self) -> Effort:
        """That of the profile; a single pass is a short one."""
        return Effort(passes=self.passes) if self.passes > 1 else SHORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Settings that do not depend on the machine: output tokens per prompt, and number of validated policies."""

    new_tokens: int
    num_policies: int


# From the full demo to the smallest useful one. Repetitions go first, since they say least about other prompts; then
# layers, as long as the target stays much slower than its draft; then prompts.
LADDER = (
    Choice(layers=48, passes=PASSES, traced=119, validated=18, repeats=3),
    Choice(layers=48, passes=PASSES, traced=119, validated=18, repeats=2),
    Choice(layers=48, passes=PASSES, traced=119, validated=18, repeats=1),
    Choice(layers=48, passes=2, traced=119, validated=12, repeats=1),
    Choice(layers=32, passes=2, traced=119, validated=12, repeats=1),
    Choice(layers=24, passes=2, traced=119, validated=12, repeats=1),
    Choice(layers=24, passes=1, traced=80, validated=12, repeats=1),
    Choice(layers=16, passes=1, traced=80, validated=12, repeats=1),
    Choice(layers=16, passes=1, traced=48, validated=8, repeats=1),
    Choice(layers=12, passes=1, traced=32, validated=6, repeats=1),
    Choice(layers=12, passes=1, traced=16, validated=4, repeats=1),
)


def choose(
    gauge: Gauge,
    scope: Scope,
    *,
    budget_s: float,
    ladder: Sequence[Choice] = LADDER,
    spent_s: Mapping[str, float] | None = None,
    pace: float = 1.0,
) -> Choice:
    """The first choice of a ladder that fits; the last one if none does.

    budget_s: seconds for all stages. spent_s: seconds of the finished stages; the others are estimated. pace: ratio of
    actual to estimated time so far.
    """
    spent_s = spent_s or {}
    for choice in ladder:
        estimated = stage_seconds(gauge, scope, choice)
        left_s = sum(seconds for stage, seconds in estimated.items() if stage not in spent_s)
        if sum(spent_s.values()) + left_s * max(1.0, pace) * _MARGIN <= budget_s:
            return choice
    return ladder[-1]


def stage_seconds(gauge: Gauge, scope: Scope, choice: Choice) -> dict[str, float]:
    """Estimated seconds of each stage: its forwards, whose number is known, and its simulations."""
    start_s = _START_SIMULATIONS * gauge.simulation_s
    load_s = gauge.load_s * choice.layers / gauge.deep_layers
    request_s = _request_seconds(gauge, scope, choice)
    engines = 2 if gauge.num_devices > 1 else 1
    sweeps = engines * (choice.repeats * choice.validated * scope.num_policies / 24 + len(CONTEXTS) / 2)
    return {
        "profile": start_s
        + choice.passes * pass_seconds(choice.effort, gauge.pace(choice.layers), layouts_on(gauge.num_devices)),
        "trace": start_s + choice.traced * _traced_seconds(gauge, scope),
        "plan": start_s
        + gauge.simulation_s
        * (_SEARCH_SIMULATIONS + _FINAL_SIMULATIONS_PER_PROMPT * choice.traced)
        / gauge.num_devices,
        "run": start_s + load_s + min(request_s),
        "validate": start_s
        + engines * load_s
        + choice.repeats * choice.validated * sum(request_s)
        + sweeps * SWEEP_REPEATS * _sweep_seconds(gauge, choice)
        + closing_seconds(gauge, scope, choice),
    }


def closing_seconds(gauge: Gauge, scope: Scope, choice: Choice) -> float:
    """Seconds of a validation after its last prompt, for the re-timed and re-traced predictions."""
    simulated_s = gauge.simulation_s * scope.num_policies * (choice.traced + choice.validated) / gauge.num_devices
    return simulated_s + choice.validated * _guessing_seconds(gauge, scope)


def _sweep_seconds(gauge: Gauge, choice: Choice) -> float:
    target = sum(gauge.target_s(choice.layers, rows) for rows in TARGET_ROWS)
    return target + _DRAFTS_PER_VERIFICATION * len(TARGET_ROWS) * gauge.draft.at(mean(DRAFT_ROWS))


def _round_seconds(gauge: Gauge, choice: Choice) -> float:
    return gauge.target_s(choice.layers, _TREE_ROWS) + _DRAFTS_PER_ROUND * gauge.draft.at(_TREE_ROWS)


def _request_seconds(gauge: Gauge, scope: Scope, choice: Choice) -> list[float]:
    """Seconds of one prompt: autoregressive decoding first, then speculative policies."""
    speculative_s = scope.new_tokens / _TOKENS_PER_ROUND * _round_seconds(gauge, choice)
    plain_s = scope.new_tokens * gauge.target_s(choice.layers, 1)
    return [plain_s, *[speculative_s] * (scope.num_policies - 1)]


def _traced_seconds(gauge: Gauge, scope: Scope) -> float:
    """Seconds to trace one prompt: the target as bundled decodes it, then the draft guesses."""
    return scope.new_tokens * gauge.base.at(1) + _guessing_seconds(gauge, scope)


def _guessing_seconds(gauge: Gauge, scope: Scope) -> float:
    """Seconds of the draft's guesses at one output: four rows at a time, twice."""
    return scope.new_tokens / 4 * 2 * gauge.draft.at(4)


def left_out(choice: Choice, wanted: Choice = LADDER[0]) -> list[str]:
    """Sentences about the parts of the full demo that a choice leaves out, and the consequences; empty if none."""
    differences = (
        (choice.layers, wanted.layers, "layers of the target", "its cost is closer to the draft's"),
        (choice.passes, wanted.passes, "passes of the profile", "slow spells of the machine have more effect"),
        (choice.traced, wanted.traced, "prompts traced", "acceptance is less certain"),
        (choice.validated, wanted.validated, "prompts validated", "errors have wider margins"),
        (choice.repeats, wanted.repeats, "repetitions of the validation", "noise averages out less"),
    )
    return [f"{had} instead of {all_} {what}: {so}" for had, all_, what, so in differences if had < all_]


def restricted(
    ladder: Sequence[Choice],
    *,
    layers: int | None = None,
    passes: int | None = None,
    repeats: int | None = None,
    most_traced: int | None = None,
    most_validated: int | None = None,
) -> list[Choice]:
    """A ladder with some values fixed, by the user or by finished stages, and no more prompts than there are."""
    settled = {"layers": layers, "passes": passes, "repeats": repeats}
    given = {name: value for name, value in settled.items() if value is not None}
    changed = [
        replace(
            choice,
            traced=min(choice.traced, most_traced or choice.traced),
            validated=min(choice.validated, most_validated or choice.validated),
            **given,
        )
        for choice in ladder
    ]
    return list(dict.fromkeys(changed))
