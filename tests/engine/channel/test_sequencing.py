from swiftspec.engine.channel.sequencing import Conversation, Stamp
from swiftspec.policies.effects import Hello, Knock, Message, Stop, Text, Verdict

WORD = Verdict((1,))


def ends() -> tuple[Conversation, Conversation]:
    return Conversation(leads=True), Conversation(leads=False)


def test_messages_in_order_are_admitted_once() -> None:
    target, draft = ends()
    stamps = [target.stamp(WORD) for _ in range(3)]
    assert [draft.admits(stamp, WORD) for stamp in stamps] == [True] * 3
    assert not any(draft.admits(stamp, WORD) for stamp in stamps)
    assert draft.num_refused == 0


def test_a_gap_ends_the_conversation_until_the_leading_end_opens_another() -> None:
    target, draft = ends()
    target.stamp(WORD)
    assert not draft.admits(target.stamp(WORD), WORD)
    assert not draft.admits(target.stamp(WORD), WORD)
    assert draft.num_refused == 2
    assert draft.admits(target.stamp(Knock()), Knock())
    assert draft.admits(target.stamp(WORD), WORD)


def test_what_an_older_conversation_left_behind_is_dropped_by_both_ends() -> None:
    target, draft = ends()
    late_verdict, late_hello = target.stamp(WORD), draft.stamp(Hello(3))
    knock = target.stamp(Knock())
    assert not target.admits(late_hello, Hello(3))
    assert draft.admits(knock, Knock())
    assert not draft.admits(late_verdict, WORD)
    assert target.admits(draft.stamp(Hello(3)), Hello(3))
    assert draft.admits(target.stamp(Text(0, (), True)), Text(0, (), True))
    assert (target.num_refused, draft.num_refused) == (0, 0)


def test_any_knock_of_several_opens() -> None:
    target, draft = ends()
    knocks = [target.stamp(Knock()) for _ in range(3)]
    assert draft.admits(knocks[1], Knock())
    assert not draft.admits(knocks[0], Knock())
    assert draft.admits(knocks[2], Knock())


def test_only_the_leading_end_opens() -> None:
    target, _ = ends()
    for message in (Knock(), Stop()):
        assert not target.admits(Stamp(0, 9, 0), message)
    assert target.stamp(WORD) == Stamp(0, 0, 0)


def test_stop_is_heard_whatever_was_lost_before_it() -> None:
    losses: list[list[Message]] = [[WORD], [Knock()], [WORD, Knock(), WORD]]
    for lost in losses:
        target, draft = ends()
        for message in lost:
            target.stamp(message)
        assert draft.admits(target.stamp(Stop()), Stop())


def test_a_new_request_begins_with_its_first_conversation() -> None:
    target, draft = ends()
    stale = target.stamp(WORD)
    draft.break_off()
    for end in (target, draft):
        end.begin(7)
    assert not draft.admits(stale, WORD)
    assert target.stamp(WORD) == Stamp(7, 0, 0)
    assert draft.admits(Stamp(7, 0, 0), WORD)
