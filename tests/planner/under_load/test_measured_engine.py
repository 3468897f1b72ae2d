"""An engine whose steps are those of a profile that was measured on its server."""

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.costmodel.steps import StepWork
from swiftspec.engines.words import Method
from swiftspec.planner.under_load.measured_engine import MeasuredEngine
from swiftspec.profiler.served.probes import Drafting, Work
from tests.profiler.served.steps import KNOWN, known_profile

pytestmark = pytest.mark.filterwarnings("error")


def engine(profile: Profile | None = None) -> MeasuredEngine:
    found = MeasuredEngine.of(profile or known_profile())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("sequences", "rows_each", "context"), [(1, 1, 16), (1, 1, 600), (4, 1, 300), (8, 1, 16), (1, 9, 400), (4, 4, 200)]
)
def test_steps_that_decode_and_verify_take_what_was_fitted(sequences: int, rows_each: int, context: int) -> None:
    rows, cached = sequences * rows_each, sequences * context
    expected_s = KNOWN.seconds(Work(Drafting.PLAIN, sequences, float(rows), float(cached)))
    work = StepWork(sequences=sequences, rows_each=rows_each, cache_tokens=cached)
    assert engine().step_s(work) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize(("read", "before"), [(64, 0), (512, 0), (128, 512)])
def test_prompts_take_what_was_fitted(read: int, before: int) -> None:
    expected_s = KNOWN.seconds(Work(Drafting.PLAIN, read=read, read_before=before))
    assert engine().step_s(StepWork(chunks=[(read, before)])) == pytest.approx(expected_s, rel=0.01)


def test_a_prompt_beside_requests_takes_its_rows_and_its_pairs() -> None:
    both = engine().step_s(StepWork(sequences=2, cache_tokens=200, chunks=[(128, 256)]))
    expected_s = KNOWN.seconds(Work(Drafting.PLAIN, 2, 2.0, 200.0, read=128, read_before=256))
    assert both == pytest.approx(expected_s, rel=0.01)


def test_rounds_take_their_drafts_and_what_verifying_adds() -> None:
    found = engine()
    forwards_s = found.draft_s([1, 1, 1])(4, 200.0)
    with_draft = KNOWN.seconds(Work(Drafting.DRAFT, 4, 16.0, 800.0, levels=3.0))
    plain = KNOWN.seconds(Work(Drafting.PLAIN, 4, 16.0, 800.0))
    assert forwards_s + found.round_s(Method.MODEL) == pytest.approx(with_draft - plain, rel=1e-6)
    assert found.round_s(Method.PROMPT_LOOKUP) == pytest.approx(0.002)
    assert found.round_s(None) == 0.0


def test_the_limits_and_the_methods_are_those_of_the_server() -> None:
    found = engine()
    assert (found.limits.requests, found.limits.step_tokens, found.limits.runs_ahead) == (16, 2048, False)
    assert set(found.engine.methods) == {Method.PROMPT_LOOKUP, Method.MODEL, Method.DRAFT_SERVER}
    assert found.room(beside_draft=False) == 20_000
    assert found.room(beside_draft=True) == 19_000


def test_a_profile_of_this_packages_engine_has_none() -> None:
    assert MeasuredEngine.of(known_profile().model_copy(update={"served": None})) is None


def test_a_profile_keeps_its_server_in_its_file() -> None:
    profile = known_profile()
    again = Profile.parse(__import__("json").loads(profile.to_bytes()), source="profile.json")
    assert again.served == profile.served
