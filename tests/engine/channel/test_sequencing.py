from swiftspec.engine.channel.sequencing import Exchange, Header
from swiftspec.policies.effects import CatchUp, Message, Probe, ProbeReply, Stop, Verdict

WORD = Verdict((1,))


def ends() -> tuple[Exchange, Exchange]:
    return Exchange(0, leads=True), Exchange(0, leads=False)


def test_messages_in_order_are_admitted_once() -> None:
    target, draft = ends()
    headers = [target.header(WORD) for _ in range(3)]
    assert [draft.admits(header, WORD) for header in headers] == [True] * 3
    assert not any(draft.admits(header, WORD) for header in headers)


def test_a_gap_ends_the_exchange_until_the_leading_end_opens_another() -> None:
    target, draft = ends()
    target.header(WORD)
    assert not draft.admits(target.header(WORD), WORD)
    assert not draft.admits(target.header(WORD), WORD)
    assert draft.admits(target.header(Probe()), Probe())
    assert draft.admits(target.header(WORD), WORD)


def test_what_an_older_exchange_left_behind_is_dropped_by_both_ends() -> None:
    target, draft = ends()
    late_verdict, late_hello = target.header(WORD), draft.header(ProbeReply(3))
    probe = target.header(Probe())
    assert not target.admits(late_hello, ProbeReply(3))
    assert draft.admits(probe, Probe())
    assert not draft.admits(late_verdict, WORD)
    assert target.admits(draft.header(ProbeReply(3)), ProbeReply(3))
    assert draft.admits(target.header(CatchUp(0, (), True)), CatchUp(0, (), True))


def test_any_probe_of_several_opens() -> None:
    target, draft = ends()
    probes = [target.header(Probe()) for _ in range(3)]
    assert draft.admits(probes[1], Probe())
    assert not draft.admits(probes[0], Probe())
    assert draft.admits(probes[2], Probe())


def test_only_the_leading_end_opens() -> None:
    target, _ = ends()
    for message in (Probe(), Stop()):
        assert not target.admits(Header(0, 9, 0), message)
    assert target.header(WORD) == Header(0, 0, 0)


def test_stop_is_heard_whatever_was_lost_before_it() -> None:
    losses: list[list[Message]] = [[WORD], [Probe()], [WORD, Probe(), WORD]]
    for lost in losses:
        target, draft = ends()
        for message in lost:
            target.header(message)
        assert draft.admits(target.header(Stop()), Stop())
