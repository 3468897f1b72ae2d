import numpy as np
import pytest

from swiftspec.policies import Policy
from swiftspec.policies.asynchronous.pearl import Pearl
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.simulator.driver import simulate
from swiftspec.simulator.latency import LatencyDraw, LatencySampler, LatencyTable
from swiftspec.timing.latency import Provenance
from swiftspec.timing.sharing import Sharing, SharingCost
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.timeline import COMPUTING, Phase
from tests.builders import chain_trace, constant_profile, divided_profile, host_point, profile, step_point

SAMPLES_S = [1.0, 2.0, 3.0, 10.0]
VERIFY = StepKey(Role.TARGET, Phase.VERIFY, degree=1, rows=1, context=0)


def meter(*, seed: int = 0) -> LatencySampler:
    steps = (
        step_point(Role.TARGET, Phase.VERIFY, SAMPLES_S, context=0),
        step_point(Role.TARGET, Phase.VERIFY, [20.0], busy=True, context=0),
        step_point(Role.TARGET, Phase.PREFILL, [5.0], rows=8, context=0),
        step_point(Role.DRAFT, Phase.PREFILL, [0.5], rows=8, context=0),
    )
    made = LatencySampler(
        LatencyTable(profile(steps, (host_point(Phase.SEND, 0.25),)).latencies), degrees={Role.TARGET: 1, Role.DRAFT: 1}
    )
    made.seed(seed)
    return made


def verify_s(source: LatencySampler, count: int, *, peer_busy: bool = False) -> list[float]:
    return [source.forward(VERIFY._replace(peer_busy=peer_busy)) for _ in range(count)]


def test_forwards_have_the_measured_mean_and_range() -> None:
    drawn = verify_s(meter(), 4000)
    quantiles = step_point(Role.TARGET, Phase.VERIFY, SAMPLES_S).quantiles_s
    assert np.mean(drawn) == pytest.approx(np.mean(quantiles), rel=0.05)
    assert set(drawn) == set(quantiles)


def test_a_seed_gives_the_same_draws_and_another_seed_others() -> None:
    assert verify_s(meter(seed=3), 20) == verify_s(meter(seed=3), 20)
    assert verify_s(meter(seed=3), 20) != verify_s(meter(seed=4), 20)


def test_draws_of_one_phase_do_not_shift_another() -> None:
    disturbed = meter()
    for _ in range(7):
        disturbed.host(Phase.SEND)
    assert verify_s(disturbed, 20) == verify_s(meter(), 20)


def test_a_busy_peer_has_its_own_price() -> None:
    assert verify_s(meter(), 3, peer_busy=True) == [20.0] * 3


def test_each_roles_prefill_has_its_own_price() -> None:
    source = meter()
    seconds = {
        role: source.forward(StepKey(role, Phase.PREFILL, degree=1, rows=8, context=0))
        for role in (Role.TARGET, Role.DRAFT)
    }
    assert seconds == {Role.TARGET: 5.0, Role.DRAFT: 0.5}


def test_missing_host_time_is_free_and_assumed() -> None:
    source = meter()
    assert (source.host(Phase.SEND), source.host(Phase.COMMIT)) == (0.25, 0.0)
    assert source.seconds == {Provenance.MEASURED: 0.25, Provenance.ASSUMED: 0.0}


def test_seconds_are_added_up_by_provenance() -> None:
    source = meter()
    exact = verify_s(source, 5)
    between = source.forward(VERIFY._replace(context=100))
    assert source.seconds == pytest.approx({Provenance.MEASURED: sum(exact), Provenance.INTERPOLATED: between})


def test_price_follows_context() -> None:
    points = [
        step_point(Role.TARGET, Phase.VERIFY, [seconds], context=context) for context, seconds in ((0, 1.0), (320, 2.0))
    ]
    prices = LatencyTable(profile(tuple(points), ()).latencies)

    def price_s(context: int) -> float:
        return prices.forward(VERIFY._replace(context=context)).quantiles_s[0]

    # Within half of the 16 positions that share a price.
    assert [price_s(context) for context in (0, 40, 160, 320)] == pytest.approx([1.0, 1.125, 1.5, 2.0], abs=8 / 320)


def test_further_sequences_are_charged_with_their_provenance() -> None:
    source = meter()
    alone = source.forward(VERIFY._replace(peer_busy=True))
    unknown = source.forward(VERIFY._replace(peer_busy=True, sequences=3))
    assert (alone, unknown) == (20.0, 20.0)
    assert source.seconds == {Provenance.MEASURED: 40.0, Provenance.ASSUMED: 0.0}


def test_half_a_forward_has_half_of_a_further_sequences_cost() -> None:
    cost = SharingCost(
        role=Role.TARGET, degree=1, peer_busy=False, sequence_s=1.0, slot_s=0.01, provenance=Provenance.COMPOSED
    )
    machine = constant_profile(expand_s=1.0, verify_s=8.0, host_s={}).model_copy(
        update={"sharing": Sharing(costs=(cost,)), "peers_interfere": False}
    )
    prices = LatencyTable(machine.latencies)

    def draw(role: Role, phase: Phase, sequences: int) -> LatencyDraw:
        # 93 to 96 slots share the price of 88.
        return prices.forward(StepKey(role, phase, 1, rows=4, context=95, sequences=sequences, peer_busy=True))

    whole, half = draw(Role.TARGET, Phase.VERIFY, 3), draw(Role.TARGET, Phase.EXIT, 3)
    assert whole.quantiles_s == pytest.approx([8.0 + 2 * 1.88] * 20)
    assert half.quantiles_s == pytest.approx([4.0 + 1.88] * 20)
    assert dict(whole.shares)[Provenance.COMPOSED] == pytest.approx(3.76 / 11.76)
    assert sum(dict(whole.shares).values()) == pytest.approx(1)
    assert draw(Role.DRAFT, Phase.EXPAND, 3).quantiles_s == draw(Role.DRAFT, Phase.EXPAND, 1).quantiles_s


def test_unmeasured_degree_is_an_error() -> None:
    prices = LatencyTable(constant_profile(expand_s=1.0, verify_s=5.0, degrees=(1,)).latencies)
    with pytest.raises(ValueError, match=r"degree is 3, but the target's verify steps were measured at \[1\]"):
        prices.forward(VERIFY._replace(degree=3))


def test_groups_that_ranks_divide_have_prices_of_their_own() -> None:
    profile, trace = divided_profile(factor=3.0), chain_trace(num_tokens=8)

    def e2e_s(policy: Policy, ranks: dict[Role, int]) -> float:
        (timeline,) = simulate(policy, degrees={Role.TARGET: 2}, profile=profile, trace=trace, ranks=ranks)
        return sum(span.end_s - span.start_s for span in timeline.spans if span.phase in COMPUTING)

    # A co-located draft is divided as its target is.
    for policy in (Autoregressive(), SerialChain(num_draft_tokens=2)):
        assert e2e_s(policy, {Role.TARGET: 2}) == pytest.approx(3 * e2e_s(policy, {}))


def test_a_role_of_its_own_has_its_own_ranks() -> None:
    profile, trace = divided_profile(factor=3.0, num_devices=3), chain_trace(num_tokens=8)
    policy, degrees = Pearl(num_draft_tokens=2), {Role.TARGET: 2, Role.DRAFT: 1}
    whole, divided = (
        simulate(policy, degrees=degrees, profile=profile, trace=trace, ranks=ranks)[0]
        for ranks in ({}, {Role.TARGET: 2})
    )
    for phase, factor in ((Phase.VERIFY, 3), (Phase.EXPAND, 1)):
        first_s, other_s = (sum(s.end_s - s.start_s for s in line.phase(phase)[:3]) for line in (whole, divided))
        assert other_s == pytest.approx(factor * first_s)
