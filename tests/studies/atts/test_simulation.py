"""Simulated samples: closed forms of both modes, and what the servers cost."""

from collections.abc import Mapping

import numpy as np
import pytest
import simpy

from swiftspec.artifacts.distributions import Lengths
from swiftspec.policies.effects import Role
from swiftspec.studies.atts.document import AttsFigures, AttsOptions, AttsQuestion, Ending
from swiftspec.studies.atts.scripts import SURVIVORS, Drawing, QuestionScript, SampleScript, TurnScript, drawn_scripts
from swiftspec.studies.atts.selection import Selections
from swiftspec.studies.atts.simulated_servers import Pace, PacedServer, SimulatedServer
from swiftspec.studies.atts.simulation import simulate

DRAFT_S, TARGET_S, SCORE_S = 0.01, 0.03, 0.001  # per token
UNLIMITED = AttsOptions(draft_calls=16, target_calls=16)


def servers(env: simpy.Environment) -> Mapping[Role, SimulatedServer]:
    return {
        Role.DRAFT: PacedServer(env, Pace(token_s=DRAFT_S)),
        Role.TARGET: PacedServer(env, Pace(token_s=TARGET_S, prompt_token_s=SCORE_S)),
    }


def script(options: AttsOptions, *, cv: float, turns: int = 6, seed: int = 0) -> QuestionScript:
    """Samples of equally many turns, whose segments have log-normal lengths with this coefficient of variation."""
    rng = np.random.default_rng(seed)
    sigma = np.sqrt(np.log1p(cv**2))
    shape = (options.num_samples, turns)
    draft, target = (np.rint(400 * np.exp(sigma * rng.standard_normal(shape) - sigma**2 / 2)) + 1 for _ in range(2))
    scores = rng.random(shape) + 1
    samples = tuple(
        SampleScript(tuple(TurnScript(int(d), float(s), int(t)) for d, s, t in zip(*each, strict=True)), Ending.MARKER)
        for each in zip(draft, scores, target, strict=True)
    )
    return QuestionScript(question_id="q", prompt_tokens=100, samples=samples)


CALIBRATION = {"q": (np.random.default_rng(1).random(1600) + 1).tolist()}


def run(options: AttsOptions, script: QuestionScript) -> AttsQuestion:
    selections = Selections(options, CALIBRATION)
    return simulate(script, selections.of(script.question_id), options, servers)


def test_a_sample_without_a_barrier_takes_the_sum_of_its_own_times() -> None:
    options = UNLIMITED
    asked = script(options, cv=0.5)
    found = run(options, asked)
    for sample, wanted in zip(found.samples, asked.samples, strict=True):
        length, time_s = asked.prompt_tokens, 0.0
        for turn, made in zip(wanted.turns, sample.turns, strict=True):
            length += turn.draft_tokens
            time_s += turn.draft_tokens * DRAFT_S + length * SCORE_S
            if made.is_taken_over:
                time_s += length * SCORE_S + turn.target_tokens * TARGET_S
                length += turn.target_tokens
        assert sample.ended_s == pytest.approx(time_s)
    assert 0 < AttsFigures.of([found]).taken_over < 1


def test_with_a_barrier_a_turn_takes_as_long_as_its_slowest_samples() -> None:
    """The slowest until the scores are in, and then the slowest of those that are taken over."""
    options = UNLIMITED.model_copy(update={"is_barrier": True})
    found = run(options, script(options, cv=0.5))
    began_s = 0.0
    for turns in zip(*(sample.turns for sample in found.samples), strict=True):
        assert [turn.began_s for turn in turns] == pytest.approx([began_s] * len(turns))
        scored_s = max(turn.scored_s - turn.began_s for turn in turns)
        written_s = max((turn.ended_s - turn.selected_s for turn in turns if turn.is_taken_over), default=0.0)
        assert [turn.selected_s for turn in turns] == pytest.approx([began_s + scored_s] * len(turns))
        began_s += scored_s + written_s
    assert found.makespan_s == pytest.approx(began_s)
    assert AttsFigures.of([found]).taken_over == pytest.approx(0.4, abs=0.01)


def gain(cv: float, budget: float, *, questions: int = 12) -> float:
    """Time of questions with a barrier over that without."""
    times = [0.0, 0.0]
    for is_barrier in (False, True):
        options = UNLIMITED.model_copy(update={"budget": budget, "is_barrier": is_barrier})
        for seed in range(questions):
            times[is_barrier] += run(options, script(options, cv=cv, seed=seed)).makespan_s
    return times[1] / times[0]


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_equal_turns_gain_nothing_without_a_barrier(budget: float) -> None:
    assert gain(0.0, budget, questions=1) == pytest.approx(1.0)


@pytest.mark.parametrize("budget", [0.0, 0.4, 1.0])
def test_the_gain_grows_with_the_variance_of_lengths(budget: float) -> None:
    gains = [gain(cv, budget) for cv in (0.0, 0.2, 0.5, 1.0)]
    assert gains == sorted(gains)
    assert gains[-1] > 1.2 * gains[0]


def test_takeovers_are_a_variance_of_their_own() -> None:
    """With a barrier all wait for those that are taken over; without one, each for its own."""
    assert gain(0.0, 0.4) > 1.05


@pytest.mark.parametrize(("num_calls", "rounds"), [(16, 1), (4, 4), (5, 4), (1, 16)])
def test_calls_beyond_the_limit_wait_for_a_place(num_calls: int, rounds: int) -> None:
    options = AttsOptions(budget=0.0, num_turns=1, draft_calls=num_calls, target_calls=16)
    found = run(options, script(options, cv=0.0, turns=1))
    drafted_s = max(turn.drafted_s for sample in found.samples for turn in sample.turns)
    assert drafted_s == pytest.approx(rounds * 401 * DRAFT_S)


def test_requests_that_share_a_server_are_equally_fast() -> None:
    """Alone a token takes 1 s, and half a second longer for each other request."""
    env = simpy.Environment()
    server = PacedServer(env, Pace(token_s=1.0, sharing_s=0.5, prompt_token_s=2.0))
    ended: dict[str, float] = {}

    def ask(name: str, at_s: float, num_tokens: int) -> object:
        yield env.timeout(at_s)
        yield from server.write(0, num_tokens)
        ended[name] = env.now

    # a: 2 tokens alone, 4 beside b (6 s), 3 beside b and c (6 s); then b has 3 left of 10, c 7 of 10.
    for name, at_s, num_tokens in (("a", 0.0, 9), ("b", 2.0, 10), ("c", 8.0, 10)):
        env.process(ask(name, at_s, num_tokens))  # type: ignore[arg-type]  # a generator of events
    env.run()
    assert ended == pytest.approx({"a": 14.0, "b": 14.0 + 3 * 1.5, "c": 14.0 + 3 * 1.5 + 4 * 1.0})


QUESTIONS = [(str(number), 120) for number in range(100)]
FIXED = Drawing(
    draft_lengths=Lengths.parse("fixed:500", field="x"), target_lengths=Lengths.parse("fixed:500", field="x")
)


def test_drawn_turns_are_the_published_ones() -> None:
    options = AttsOptions()
    seeds = [options.model_copy(update={"seed": seed}) for seed in range(5)]
    scripts = [each for seeded in seeds for each in drawn_scripts(QUESTIONS, seeded, FIXED).questions]
    turns = np.array([[len(sample.turns) for sample in each.samples] for each in scripts])
    published = sum(SURVIVORS) / SURVIVORS[0]
    assert published == pytest.approx(3.79, abs=0.005)
    assert turns.mean() == pytest.approx(published, rel=0.1)  # 500 questions, whose samples are alike
    for turn in (2, 5, 15):
        assert np.mean(turns >= turn) == pytest.approx(SURVIVORS[turn - 1] / SURVIVORS[0], abs=0.04)
    assert 1 - turns.var(axis=1).mean() / turns.var() == pytest.approx(0.854, abs=0.05)


def test_a_marginal_threshold_takes_over_its_budget() -> None:
    options = AttsOptions()
    scripts, calibration = drawn_scripts(QUESTIONS, options, FIXED)
    selections = Selections(options, calibration)
    figures = AttsFigures.of([simulate(each, selections.of(each.question_id), options, servers) for each in scripts])
    assert figures.taken_over == pytest.approx(0.4, abs=0.02)
    assert figures.num_samples == 1600
    assert figures.survivors[0] == 1600
