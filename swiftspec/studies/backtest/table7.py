"""SwiftSpec's Table 7: fit on the serial tree's acceptance lengths, predict the asynchronous tree's.

Qwen2-72B with Qwen2-1.5B, six data sets, 8 rows verified and 8 leaves per expansion in both arms. The paper does not
print the number of expansions per round, whether a length counts the bonus token, or the number of forwards after a
miss. They are inferred from the paper's rules and the serial arm's time, never from the asynchronous lengths:

- An expansion lengthens the tree along the true path by one token at most, so on average a round accepts no more draft
  tokens than it has expansions. GSM8K's 4.2 (3.2 without a bonus token) rules out 3. Four cannot last the printed
  3.73 ms each: after a verification of 10.34 ms that is a round of 25.3 ms, in which 200 tokens/s are 5.05 tokens; the
  mean length is 3.63, at most 4.63 with the bonus token.
- If lengths count the bonus token, 200 tokens/s are rounds of 18.2 ms, of which drafting has 7.8; otherwise 23.2 and
  12.8. A draft of 28 layers takes about 1.1 ms with the paper's kernels (Table 8: 34 us a layer, then the head). It is
  7 expansions, the tree levels per round that readers of the released code report; or 12, too many for a verification.
- The tree grows until it has 8 nodes. After a miss that is two forwards: of the root, then of its candidates.

tests/backtest/test_table7.py shows how much each assumption matters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.interpolate import PchipInterpolator

from swiftspec.acceptance.fitting import Fit
from swiftspec.acceptance.model import PRIOR, AcceptanceModel
from swiftspec.acceptance.synthesis import synthesise
from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.profile import Profile
from swiftspec.files.document import ModelRef
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.chains.serial import SerialTree
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from swiftspec.studies.backtest.figures import Length, acceptance_of, fit_acceptance_model
from swiftspec.studies.backtest.timed import timed_profile
from swiftspec.timing.timeline import Phase, Timeline

TARGET, DRAFT = "qwen2-72b", "qwen2-1.5b"
_TARGET_MODEL, _DRAFT_MODEL = (ModelRef(model=name, dtype="int4") for name in (TARGET, DRAFT))
_VERIFY_S = 10.48e-3
_ROWS = 8
_NUM_PROMPTS, _NUM_TOKENS, _SEED = 16, 192, 0
_MEAN_LOGITS = (0.0, 1.5, 3.0, 4.5, 6.0)  # the serial length is interpolated between these


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Details that the paper leaves open, with the values argued for above.

    Parameters
    ----------
    expansions : int
        Expansions per round, in both arms.
    bonus : bool
        Whether a printed length counts the bonus token.
    miss_expansions : int
        Draft forwards between a miss and the next verification.
    """

    expansions: int = 7
    bonus: bool = True
    miss_expansions: int = 2

    @property
    def serial(self) -> SerialTree:
        return SerialTree(verify_rows=_ROWS, expand_rows=_ROWS, num_candidates=_ROWS, expansions=self.expansions)

    @property
    def parallel(self) -> SwiftSpec:
        return SwiftSpec(
            verify_rows=_ROWS, expand_rows=_ROWS, num_candidates=_ROWS, miss_expansions=self.miss_expansions
        )

    def length(self, policy: SerialTree | SwiftSpec, acceptance_model: AcceptanceModel) -> float:
        """Length as the paper would print it, from a simulation whose verifications last `expansions` expansions."""
        return _tokens_per_round(policy, acceptance_model, self.expansions) - (not self.bonus)


def published_lengths(arm: str) -> dict[str, float]:
    """Printed lengths by data set; `arm` is serial or asynchronous."""
    return {record.dataset: record.values[0] for record in acceptance_of(TARGET, DRAFT) if record.shape.startswith(arm)}


def serial_fits(reading: Reading, *, prior: AcceptanceModel = PRIOR) -> dict[str, Fit]:
    """Acceptance models by data set, fitted to the serial arm's printed lengths; only the mean logit varies."""
    of = _serial_curve(reading, prior)
    return {
        dataset: fit_acceptance_model([Length(value=length, of=of)], prior=prior)
        for dataset, length in published_lengths("serial").items()
    }


def predicted_lengths(reading: Reading, *, prior: AcceptanceModel = PRIOR) -> dict[str, float]:
    """Lengths of the asynchronous tree by data set, from the serial arm's alone."""
    fits = serial_fits(reading, prior=prior)
    return {dataset: reading.length(reading.parallel, fit.acceptance_model) for dataset, fit in fits.items()}


def predicted_tails(reading: Reading) -> dict[str, float]:
    """Speed that 95 % of the prompts of all data sets exceed, over their mean speed: `parallel` and `serial`."""
    fits = serial_fits(reading).values()
    tails = {}
    for name, policy in (("parallel", reading.parallel), ("serial", reading.serial)):
        timelines = [each for fit in fits for each in _timelines(policy, fit.acceptance_model, reading.expansions)]
        speeds = [measure([timeline]).decoding_tokens_per_s for timeline in timelines]
        tails[name] = float(np.quantile(speeds, 0.05) / np.mean(speeds))
    return tails


def _serial_curve(reading: Reading, prior: AcceptanceModel) -> Callable[[AcceptanceModel], float]:
    """The serial arm's length against the mean logit; this takes fewer simulations than one fit per data set."""
    lengths = [
        reading.length(reading.serial, prior.model_copy(update={"mean_logit": mean_logit}))
        for mean_logit in _MEAN_LOGITS
    ]
    curve = PchipInterpolator(np.array(_MEAN_LOGITS), np.array(lengths))
    return lambda acceptance_model: float(curve(acceptance_model.mean_logit))


def _tokens_per_round(policy: SerialTree | SwiftSpec, acceptance_model: AcceptanceModel, expansions: int) -> float:
    return measure(_timelines(policy, acceptance_model, expansions)).figures.tokens_per_round


@cache  # readings that differ only in the bonus token or after a miss share their serial arm
def _timelines(
    policy: SerialTree | SwiftSpec, acceptance_model: AcceptanceModel, expansions: int
) -> tuple[Timeline, ...]:
    trace = synthesise(
        acceptance_model,
        num_prompts=_NUM_PROMPTS,
        prompt_length=1,
        num_tokens=_NUM_TOKENS,
        seed=_SEED,
        target=_TARGET_MODEL,
        draft=_DRAFT_MODEL,
        num_candidates=_ROWS,
    )
    simulation = Simulator(_profile(expansions), trace).run(policy, degrees=dict.fromkeys(Role, 1), seed=_SEED)
    return tuple(simulation.timelines)


def _profile(expansions: int) -> Profile:
    # The last expansion is still running when the verdict arrives, so exactly that many are made.
    seconds = {Phase.VERIFY: _VERIFY_S, Phase.EXPAND: _VERIFY_S / (expansions - 0.5), Phase.PREFILL: _VERIFY_S}
    steps = ((Role.TARGET, Phase.VERIFY), (Role.DRAFT, Phase.EXPAND), *((role, Phase.PREFILL) for role in Role))
    return timed_profile(
        {(role, phase, 1): seconds[phase] for role, phase in steps},
        device="h800-sxm",
        target=_TARGET_MODEL,
        draft=_DRAFT_MODEL,
    )
