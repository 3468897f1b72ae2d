"""What two readings say, of each engine, and readings that say nothing."""

import pytest

from swiftspec.advise.observed import observed_load
from swiftspec.loadtest.readings import Reading
from tests.advise.servers import OUTPUT, PROMPT, SimulatedServer, text

SGLANG = {
    "prompt_tokens_total": 5000,
    "cached_tokens_total": 1000,
    "generation_tokens_total": 4100,
    "num_requests_total": 100,
    "time_to_first_token_seconds_sum": 20.0,
    "time_to_first_token_seconds_count": 100,
    "e2e_request_latency_seconds_sum": 120.0,
    "e2e_request_latency_seconds_count": 100,
    "spec_accept_length": 2.5,
    "spec_num_steps": 3,
    "spec_num_draft_tokens": 4,
}


def reading(counted: dict[str, float], prefix: str = "vllm") -> Reading:
    return Reading.parse(text(counted, (), prefix=prefix), "metrics")


def test_a_load_is_read_from_the_difference() -> None:
    server = SimulatedServer(length=4, count=200)
    found, run = observed_load(*server.parsed()[:2], seconds=server.parsed()[2]), server.run()
    assert found.requests == 200
    assert found.prompt_tokens == pytest.approx(PROMPT)
    assert found.output_tokens == pytest.approx(OUTPUT, rel=0.1)
    assert found.present == pytest.approx(6, rel=0.03), "Little's law"
    assert found.tpot_s == pytest.approx(run.tpot_s.mean())
    assert found.draft_tokens == 4
    assert found.draft_share == pytest.approx(1.0, abs=0.01)
    assert found.survival == pytest.approx(server.survival, rel=0.01)
    assert found.effective_drafts < found.drafts
    assert found.cached_share == 0.0


def test_sglang_tells_the_mean_of_a_round_alone() -> None:
    before = {**dict.fromkeys(SGLANG, 0.0)}
    found = observed_load(reading(before, "sglang"), reading(SGLANG, "sglang"), seconds=30.0)
    assert (found.engine, found.requests, found.draft_tokens) == ("sglang", 100, 3)
    assert found.tokens_per_round == pytest.approx(2.5, rel=1e-6)
    assert found.cached_share == pytest.approx(0.2)
    assert found.present == pytest.approx(4.0)
    assert found.tpot_s == pytest.approx(100.0 / 4000)
    assert any("by position" in sentence for sentence in found.unknown)


def test_what_is_missing_is_said() -> None:
    counted = {name: value for name, value in SGLANG.items() if not name.startswith(("spec", "cached"))}
    found = observed_load(reading({}, "sglang"), reading(counted, "sglang"), seconds=30.0)
    assert found.cached_share is None
    assert found.draft_tokens == 0
    assert len(found.unknown) == 3


@pytest.mark.parametrize(
    ("sentence", "before", "after", "seconds"),
    [
        ("after is a reading of sglang; --before is one of vllm", reading({}), reading(SGLANG, "sglang"), 60.0),
        ("fewer than --before has", reading({"generation_tokens_total": 5}), reading({}), 60.0),
        ("no request has ended", reading({}), reading({}), 60.0),
        ("seconds is 0", reading({}), reading({}), 0.0),
        (
            "without times per token",
            reading({}),
            reading({"generation_tokens_total": 50, "request_success_total": 5}),
            60.0,
        ),
    ],
)
def test_readings_that_are_none_of_a_load_are_refused(
    sentence: str, before: Reading, after: Reading, seconds: float
) -> None:
    with pytest.raises(ValueError, match=sentence):
        observed_load(before, after, seconds=seconds)
