import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import Phase, Span, Timeline
from swiftspec.timing.warm_up import WarmUpCost, WeightCache
from swiftspec.validation.load_steps import SharedStep, shared_steps, step_factors
from tests.cli.samples import candidate
from tests.test_architecture import ROOT

PROFILE = Profile.load(ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores/profile.json")


def span(phase: Phase, rows: int, start_s: float, end_s: float, *, tokens: int = 0) -> Span:
    return Span(Role.TARGET, phase, Role.TARGET, rows, tokens, start_s, end_s)


def test_spans_with_the_same_times_are_one_step() -> None:
    first = Timeline(
        request="0",
        start_s=0.0,
        spans=(
            span(Phase.PREFILL, 10, 0.0, 1.0),
            span(Phase.COMMIT, 0, 1.0, 1.0, tokens=1),
            span(Phase.VERIFY, 4, 1.5, 2.0),
            span(Phase.COMMIT, 0, 2.0, 2.0, tokens=3),
            span(Phase.VERIFY, 4, 2.0, 3.0),
        ),
    )
    second = Timeline(
        request="1", start_s=1.2, spans=(span(Phase.PREFILL, 20, 1.5, 2.0), span(Phase.VERIFY, 2, 2.0, 3.0))
    )
    role, target = Role.TARGET, Role.TARGET
    assert list(shared_steps([first, second], [10, 20])) == [
        SharedStep(role, 0, Phase.PREFILL, target, 1, 10, 10, 0.0, 1.0),
        SharedStep(role, 0, Phase.VERIFY, target, 2, 24, round((4 * 11 + 20 * 20) / 24), 1.5, 0.5),
        SharedStep(role, 0, Phase.VERIFY, target, 2, 6, round((4 * 14 + 2 * 20) / 6), 2.0, 1.0),
    ]


PAUSES = WarmUpCost(
    role=Role.TARGET,
    degree=1,
    rows=(1, 32),
    extra_s=(3e-3, 2e-3),
    left=0.8,
    evicted_s=0.01,
    provenance=Provenance.MEASURED,
)


@pytest.mark.parametrize("warm_up", [(), (PAUSES,)])
def test_factors_are_measured_over_profiled_time(warm_up: tuple[WarmUpCost, ...]) -> None:
    """Each step comes 50 ms after the last one: if that costs something, it is no drift."""
    profile = PROFILE.model_copy(update={"warm_up": warm_up})
    chosen = candidate("autoregressive", tokens_per_s=100.0)
    steps: list[SharedStep] = []
    caches = [WeightCache(cost) for cost in warm_up]
    for rows, context in ((1, 64), (8, 128), (16, 100)) * 4:
        latency = profile.step(StepKey(Role.TARGET, Phase.VERIFY, degree=1, rows=rows, context=context))
        start_s = steps[-1].start_s + steps[-1].seconds + 0.05 if steps else 0.0
        warm_up_s = sum(cache.begin(Phase.VERIFY, rows, now_s=start_s) for cache in caches)
        seconds = 1.25 * (latency.mean_s + warm_up_s)
        for cache in caches:
            cache.end(Phase.VERIFY, rows, now_s=start_s + seconds)
        steps.append(SharedStep(Role.TARGET, 0, Phase.VERIFY, Role.TARGET, 1, rows, context, start_s, seconds))
    factors = step_factors(profile, chosen, steps)
    assert {table.phase for table in factors} == {Phase.VERIFY}
    assert list(factors.values()) == [pytest.approx(1.25, rel=0.01)] * len(factors)
    assert step_factors(profile, chosen, steps[:3]) == {}  # too few to tell


def test_steps_of_a_role_that_the_policy_has_not_are_an_error() -> None:
    chosen = candidate("autoregressive", tokens_per_s=100.0)
    step = SharedStep(Role.DRAFT, 0, Phase.EXPAND, Role.DRAFT, 1, 3, 64, 1.0, 0.5)
    with pytest.raises(ValueError, match="steps of the draft; expected those of autoregressive"):
        step_factors(PROFILE, chosen, [step])
