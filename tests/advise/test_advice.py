"""Advice for simulated servers, whose true gains are known."""

import math
from functools import cache

import pytest

from swiftspec.advise.model import CountedAcceptance
from swiftspec.advise.observed import effective
from swiftspec.api.advising import ServerReadings, advise
from swiftspec.artifacts.advice import Advice, ChangeKind, Outcome
from tests.advise.servers import RATE, SimulatedServer, served_profile

LENGTHS = range(9)


@cache
def advice_for(server: SimulatedServer, draft: str = "") -> Advice:
    before, after, seconds = server.parsed()
    return advise(ServerReadings(before, after, seconds, "test"), profile=served_profile(), draft=draft)


@cache
def tokens_per_s(length: int) -> float:
    return SimulatedServer(length=length, seed=11).run().tok_s


def best_length() -> int:
    return max(LENGTHS, key=tokens_per_s)


def test_a_bad_length_is_found_with_what_a_better_one_gains() -> None:
    found = advice_for(SimulatedServer(length=8))
    assert found.outcome is Outcome.CHANGE
    assert found.best is not None
    assert found.best.kind is ChangeKind.DRAFT_LENGTH
    assert found.best.setting == f"num_speculative_tokens={found.best.value}"
    assert tokens_per_s(found.best.value) > 0.97 * tokens_per_s(best_length())
    true = tokens_per_s(found.best.value) / tokens_per_s(8)
    assert found.best.gain.ratio == pytest.approx(true, rel=0.04)
    assert found.best.gain.low < true < found.best.gain.high
    assert found.fit.time_factor == pytest.approx(1.25, rel=0.04)


def test_every_length_has_the_gain_that_it_has() -> None:
    for change in advice_for(SimulatedServer(length=8)).lengths:
        assert change.gain.ratio == pytest.approx(tokens_per_s(change.value) / tokens_per_s(8), rel=0.05), change.value


def test_a_server_that_is_well_set_is_left_as_it_is() -> None:
    found = advice_for(SimulatedServer(length=best_length()))
    assert found.outcome is Outcome.LEAVE
    assert found.best is None
    assert {change.value: change.gain.ratio for change in found.lengths}[best_length()] == pytest.approx(1.0)


def test_twenty_requests_are_not_enough() -> None:
    found = advice_for(SimulatedServer(length=8, count=20))
    assert found.outcome is Outcome.NOT_ENOUGH
    assert found.needed_requests is not None
    assert found.needed_requests >= 50


def test_less_evidence_makes_wider_intervals() -> None:
    few, many = (advice_for(SimulatedServer(length=8, count=count)) for count in (40, 400))
    for one, other in zip(few.lengths[:8], many.lengths[:8], strict=True):
        assert math.log(one.gain.high / one.gain.low) > 1.1 * math.log(other.gain.high / other.gain.low)


def test_without_drafts_their_acceptance_is_not_made_up() -> None:
    found = advice_for(SimulatedServer(length=0))
    assert [change.value for change in found.lengths] == [0]
    assert any("not known" in sentence for sentence in found.observed.unknown)


def test_requests_that_wait_may_run_at_once() -> None:
    found = advice_for(SimulatedServer(length=2, most=3))
    more = next(change for change in found.changes if change.kind is ChangeKind.REQUESTS)
    true = tokens_per_s(2) / SimulatedServer(length=2, most=3, seed=11).run().tok_s
    assert more.value == 6
    assert more.setting == "max_num_seqs=6"
    assert more.gain.ratio == pytest.approx(true, rel=0.06)


def test_what_takes_more_devices_is_shown_and_not_proposed() -> None:
    found = advice_for(SimulatedServer(length=best_length()))
    replicas = next(change for change in found.changes if change.kind is ChangeKind.REPLICAS)
    assert not replicas.is_free
    assert replicas.gain.low > 1.02


def test_lengths_by_load_fall_where_steps_are_full() -> None:
    found = advice_for(SimulatedServer(length=8))
    lengths = [each.draft_tokens for each in found.by_load]
    assert [each.requests for each in found.by_load] == [3, 6, 12]
    assert lengths == sorted(lengths, reverse=True)
    assert ("num_speculative_tokens_per_batch_size" in found.schedule) == (len(set(lengths)) > 1)


def test_looked_up_drafts_cost_no_forward() -> None:
    drafted, looked_up = (advice_for(SimulatedServer(length=8), draft) for draft in ("", "ngram"))
    assert looked_up.fit.time_factor > drafted.fit.time_factor


def test_rates_beyond_the_counted_ones_are_the_last_and_less_sure() -> None:
    accepted = CountedAcceptance(rates=(0.8, RATE), share=1.0, drafts=500.0)
    assert accepted.survival(4) == pytest.approx([0.8, 0.8 * RATE, 0.8 * RATE**2, 0.8 * RATE**3])
    drawn = accepted.drawn_tokens((2, 4), draws=4000, seed=0)
    assert drawn[2].mean() == pytest.approx(accepted.tokens(2), rel=0.01)
    assert drawn[4].std() > 1.5 * drawn[2].std()


def test_drafts_of_one_request_tell_less_than_those_of_many() -> None:
    assert effective(0.0, 5) == 0.0
    assert effective(100, 100) == 100
    assert effective(1000, 10) < effective(1000, 500) < 1000
