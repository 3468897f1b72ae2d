import numpy as np
import pytest

from swiftspec.policies.effects import (
    DraftForward,
    Poll,
    Prefill,
    Program,
    Receive,
    Role,
    Row,
    Send,
    Stop,
    TargetForward,
)
from swiftspec.timing.timeline import Phase
from tests.builders import Scripted, chain_trace, constant_profile, machine_profile, simulate_one


def test_message_is_visible_a_hop_after_its_send_ended() -> None:
    seen: list[object] = []

    def target() -> Program:
        yield Send(Stop())

    def draft() -> Program:
        for _ in range(4):
            seen.append((yield Poll()))
            yield Prefill(Role.DRAFT, (0,))

    profile = constant_profile(expand_s=1.0, verify_s=1.0, prefill_s=1.0, host_s={Phase.SEND: 0.5, Phase.WAIT: 2.0})
    policy = Scripted(scripts={Role.TARGET: target(), Role.DRAFT: draft()})
    timeline = simulate_one(policy, profile, chain_trace(num_tokens=1))
    assert seen == [None, None, None, Stop()]
    assert [(s.start_s, s.end_s) for s in timeline.phase(Phase.WAIT)] == [(3.0, 3.0)]


def test_messages_arrive_in_the_order_sent() -> None:
    received: list[object] = []

    def target() -> Program:
        for position in range(40):
            yield Send(position)  # type: ignore[arg-type]  # any message will do

    def draft() -> Program:
        for _ in range(40):
            received.append((yield Receive()))

    profile = machine_profile(noise=0.5)
    hops = tuple(np.linspace(1e-6, 1e-2, 20).tolist())
    host = tuple(p.model_copy(update={"quantiles_s": hops}) if p.phase is Phase.WAIT else p for p in profile.host)
    policy = Scripted(scripts={Role.TARGET: target(), Role.DRAFT: draft()})
    simulate_one(policy, profile.model_copy(update={"host": host}), chain_trace(num_tokens=1))
    assert received == list(range(40))


@pytest.mark.parametrize(("idles", "delay_s"), [(True, 0.0), (False, 0.5)])
def test_messages_make_the_forward_longer_in_which_they_come(idles: bool, delay_s: float) -> None:
    def target() -> Program:
        yield Prefill(Role.TARGET, (1, 2, 3, 4))
        if not idles:
            yield from TargetForward((Row(7, 4, 0),))
        yield Receive()
        yield Receive()

    def draft() -> Program:
        yield Prefill(Role.DRAFT, (1, 2, 3, 4))
        yield from DraftForward((Row(7, 4, 0),), 1)
        yield Send(Stop())
        yield Send(Stop())

    profile = constant_profile(expand_s=1.0, verify_s=5.0, prefill_s=2.0, host_s={Phase.ARRIVE: 0.25})
    scripted = Scripted(scripts={Role.TARGET: target(), Role.DRAFT: draft()})
    timeline = simulate_one(scripted, profile, chain_trace(num_tokens=3))
    assert [span.end_s for span in timeline.phase(Phase.VERIFY)] == ([] if idles else [7.0 + delay_s])
    assert [wait.end_s for wait in timeline.phase(Phase.WAIT)] == [(3.0 if idles else 7.0) + delay_s] * 2


def test_a_message_that_comes_while_another_is_taken_in_counts_too() -> None:
    def target() -> Program:
        yield Prefill(Role.TARGET, (1, 2, 3, 4))

    def draft() -> Program:
        for _ in range(3):
            yield from DraftForward((Row(7, 0, 0),), 1)
            yield Send(Stop())

    # Two come during the prefill; while the second one is taken in, the third one comes.
    profile = constant_profile(expand_s=1.0, verify_s=5.0, prefill_s=2.5, host_s={Phase.ARRIVE: 0.5})
    scripted = Scripted(scripts={Role.TARGET: target(), Role.DRAFT: draft()})
    timeline = simulate_one(scripted, profile, chain_trace(num_tokens=3))
    (prefill,) = timeline.phase(Phase.PREFILL)
    assert prefill.end_s == 2.5 + 3 * 0.5
