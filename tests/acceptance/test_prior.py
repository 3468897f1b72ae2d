"""The prior, computed again from what it was fitted on: the bundled trace, and published pairs."""

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import swiftspec
from swiftspec.acceptance.fitting import Fit
from swiftspec.acceptance.model import PRIOR
from swiftspec.acceptance.proxy_pairs import fitted_pairs
from swiftspec.acceptance.records import Quantity, published_acceptance
from swiftspec.acceptance.synthesis import EXIT_ACCEPTANCE, EXIT_SLOPE, FUZZY_SHARE, synthesise
from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.trace import AcceptanceTrace, Guesser
from swiftspec.planner.search.space import fitted_temperature
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import Simulator
from swiftspec.studies.backtest.figures import Chain, Ranks, fit_acceptance_model
from tests.builders import constant_profile

NUM_RANKS, LONGEST = 8, 8


@pytest.fixture(scope="module")
def recorded() -> AcceptanceTrace:
    return AcceptanceTrace.load(Path(swiftspec.__file__).parent / "profiles/demo-zen4-2-cores/trace.npz")


@pytest.fixture(scope="module")
def recorded_fit(recorded: AcceptanceTrace) -> Fit:
    chain = Chain(values=tuple(recorded_chain(recorded)))
    return fit_acceptance_model([chain, Ranks(values=tuple(recorded.rank_acceptance(NUM_RANKS)))])


def recorded_logits(recorded: AcceptanceTrace) -> list[np.ndarray]:
    """Of the first candidate at the fitted temperature, prompt by prompt."""
    temperature = fitted_temperature(recorded)
    logits = []
    for prompt in recorded.prompts:
        scaled = prompt.draft.logprobs.astype(float) / temperature
        logits.append(scaled[:, 0] - logsumexp(scaled[:, 1:], axis=1))
    return logits


def recorded_chain(recorded: AcceptanceTrace) -> list[float]:
    accepted = []
    for prompt in recorded.prompts:
        hits, start = prompt.ranks == 0, 0
        while start + LONGEST < len(hits):
            accepted.append(int(np.argmin(np.append(hits[start : start + LONGEST], False))))
            start += accepted[-1] + 1
    return [float(np.mean(np.array(accepted) > depth)) for depth in range(LONGEST)]


def test_spread_is_the_bundled_drafts(recorded: AcceptanceTrace) -> None:
    logits = np.concatenate(recorded_logits(recorded))
    assert np.std(logits) == pytest.approx(PRIOR.spread, rel=0.05)


def test_correlation_length_is_the_bundled_drafts(recorded: AcceptanceTrace) -> None:
    per_prompt = recorded_logits(recorded)
    everything = np.concatenate(per_prompt)
    centred = [logits - everything.mean() for logits in per_prompt]
    lags = np.arange(1, 49)
    products = [
        np.concatenate([logits[lag:] * logits[:-lag] for logits in centred if len(logits) > lag]) for lag in lags
    ]
    correlation = np.array([product.mean() for product in products]) / everything.var()
    slope, intercept = np.polyfit(lags, np.log(correlation), 1)
    assert -1 / slope == pytest.approx(PRIOR.correlation_length, rel=0.2)
    # Half of the variance is shared by neighbours, as the chains of this pair say as well.
    assert np.exp(intercept) == pytest.approx(0.5, abs=0.05)


def test_persistence_is_the_mean_over_pairs_with_chains(recorded_fit: Fit) -> None:
    fitted = [pair for pair in fitted_pairs() if "persistence" in pair.fitted]
    pairs = {(pair.target, pair.draft) for pair in fitted}
    means = [
        np.mean([pair.acceptance_model.persistence for pair in fitted if (pair.target, pair.draft) == of])
        for of in pairs
    ]
    assert len(means) == 3
    assert np.mean([*means, recorded_fit.acceptance_model.persistence]) == pytest.approx(PRIOR.persistence, abs=0.02)


def test_runner_up_is_the_mean_over_those_with_ranks(recorded_fit: Fit) -> None:
    published = [r for r in published_acceptance() if r.quantity is Quantity.CUMULATIVE_RANK_ACCEPTANCE]
    fits = [fit_acceptance_model([Ranks(values=record.values, cumulative=True)]) for record in published]
    assert len(fits) == 5
    everyone = [fit.acceptance_model.runner_up for fit in (*fits, recorded_fit)]
    assert np.mean(everyone) == pytest.approx(PRIOR.runner_up, abs=0.03)


def test_other_guessers_are_the_bundled_pairs(recorded: AcceptanceTrace) -> None:
    def hits(guesser: Guesser) -> np.ndarray:
        return np.concatenate([p.guesses[guesser].tokens[:, 0] == p.target_tokens for p in recorded.prompts])

    assert hits(Guesser.FUZZY).mean() / hits(Guesser.DRAFT).mean() == pytest.approx(FUZZY_SHARE, abs=0.001)
    at_exit, logits = hits(Guesser.EXIT), np.concatenate(recorded_logits(recorded))
    assert at_exit.mean() == pytest.approx(EXIT_ACCEPTANCE, abs=0.001)

    def loss(line: np.ndarray) -> float:
        predicted = line[0] + line[1] * logits
        return float(np.mean(np.logaddexp(0, predicted) - at_exit * predicted))

    assert minimize(loss, [0.0, 0.0]).x[1] == pytest.approx(EXIT_SLOPE, abs=0.05)


def test_five_numbers_describe_the_bundled_pair(recorded_fit: Fit) -> None:
    assert recorded_fit.residual < 0.006


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("serial_chain", {"num_draft_tokens": 8}),
        ("serial_tree", {"verify_rows": 8, "expand_rows": 8, "expansions": 7}),
        ("swiftspec", {"verify_rows": 8, "expand_rows": 8}),
    ],
)
def test_a_trace_of_the_fit_decodes_like_the_recorded_one(
    recorded: AcceptanceTrace, recorded_fit: Fit, name: str, shape: dict[str, int]
) -> None:
    """Fitted to chains and ranks alone, it predicts trees, serial and asynchronous."""
    synthesised = synthesise(
        recorded_fit.acceptance_model,
        num_prompts=32,
        prompt_length=1,
        num_tokens=96,
        seed=0,
        target=recorded.target,
        draft=recorded.draft,
    )

    def tokens_per_round(trace: AcceptanceTrace) -> float:
        fields = {} if name == "serial_chain" else {"draft_temperature": fitted_temperature(trace)}
        simulator = Simulator(constant_profile(expand_s=1.0, verify_s=6.5), trace)
        run = simulator.run(make_policy(name, **shape, **fields), degrees=dict.fromkeys(Role, 1))
        return measure(run.timelines).figures.tokens_per_round

    # Chains within 1 %, trees 1 to 5 % too long: the draft's confidence tells them a little too much.
    assert tokens_per_round(synthesised) == pytest.approx(tokens_per_round(recorded), rel=0.06)
