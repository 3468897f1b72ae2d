import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import (
    Commit,
    KeepKV,
    Message,
    PeerError,
    ProbeReply,
    Receive,
    Role,
    Send,
    Stop,
    Subtree,
    TargetForward,
    Verdict,
)
from swiftspec.policies.recovery import recoverable
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import Schedule, drive, run_alone, schedules

shapes = st.builds(
    Dsi,
    num_draft_tokens=st.integers(1, 5),
    target_groups=st.integers(2, 4),
    verify_rows=st.integers(2, 12),
)


@settings(max_examples=400, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_output_is_the_targets_own_under_any_acceptance_and_delays(
    shape: Dsi, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule, forgetful=True)
    assert run.output == draft.target.output(request)


def test_right_draft_keeps_every_group_at_a_block_of_its_own() -> None:
    target = FakeTarget(seed=2)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    # Each target takes its turn once while the draft takes one: a forward is a few draft tokens long.
    run = drive(
        Dsi(num_draft_tokens=2, target_groups=3, verify_rows=16),
        Request(prompt=(1, 2), max_new_tokens=24),
        target=target,
        draft=draft,
        schedule=Schedule(bursts=(1, 1, 1, 9)),
        forgetful=True,
    )
    ends = [event.paths[-1] for event in run.of(TargetForward)]
    assert len(set(ends)) == len(ends)  # no block is verified twice
    in_flight, most = 0, 0
    for event in run.by(Role.DRAFT):
        in_flight += isinstance(event.effect, Send) and isinstance(event.effect.message, Subtree)
        in_flight -= isinstance(event.answer, Verdict)
        most = max(most, in_flight)
    assert most == 3


@settings(max_examples=100, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), schedule=schedules())
def test_a_chain_begins_where_the_groups_cache_ends_and_holds_the_root(
    shape: Dsi, request: Request, draft: FakeDraft, schedule: Schedule
) -> None:
    run = drive(shape, request, target=draft.target, draft=draft, schedule=schedule, forgetful=True)
    seen = dict.fromkeys(range(shape.target_groups), request.root_position)
    for event in run.by(Role.DRAFT):
        if isinstance(event.effect, Send) and isinstance(event.effect.message, Subtree):
            position, tokens, parents = event.effect.message
            assert parents == tuple(range(-1, len(tokens) - 1))
            assert seen[event.effect.peer] <= position < len(event.known)
            assert event.known[position : position + len(tokens)] == tokens[: len(event.known) - position]
            seen[event.effect.peer] = position


def test_a_group_that_answers_too_little_is_named() -> None:
    program = Dsi().programs(Request(prompt=(1, 2), max_new_tokens=9))[Role.DRAFT]
    with pytest.raises(PeerError, match="expected 1 tokens of group 0, got Verdict"):
        list(run_alone(program, messages=[Verdict((3, 4))]))


def test_a_group_is_told_when_all_is_done() -> None:
    program = Dsi().programs(Request(prompt=(1, 2), max_new_tokens=1))[Role.DRAFT]
    effects = list(run_alone(program, messages=[Verdict((3,))]))
    assert effects[-2:] == [Send(Stop(), 0), Send(Stop(), 1)]


@pytest.mark.parametrize(
    "chain",
    [
        Subtree(0, (1,), (-1,)),  # begins before the last one's root
        Subtree(9, (1,), (-1,)),  # and behind its end
        Subtree(1, (2, 3, 4), (-1, 0, 0)),  # no chain
        Subtree(1, (2, 3), (-1,)),
        Subtree(1, (), ()),
        Subtree(1, (2,) * 33, tuple(range(-1, 32))),  # more than is verified at once
        Verdict((1,)),
    ],
)
def test_a_chain_that_makes_no_sense_is_the_drafts_error(chain: Message) -> None:
    program = Dsi().programs(Request(prompt=(1, 2), max_new_tokens=9))[Role.TARGET]
    good = Subtree(1, (2, 3), (-1, 0))
    with pytest.raises(PeerError, match="expected a chain of 1 to 32 tokens from position 1 to 3"):
        list(run_alone(program, messages=[good, chain], target=lambda row: row.token))


def test_a_group_ends_when_it_hears_nothing_and_says_so() -> None:
    request = Request(prompt=(1, 2), max_new_tokens=9)
    part = recoverable(Dsi(), request, Role.TARGET, fallback=Autoregressive(), patience_s=lambda: 3.0)
    effects = list(run_alone(part.run(), messages=[Subtree(1, (2,), (-1,)), None], target=lambda row: row.token))
    assert [effect for effect in effects if isinstance(effect, Receive)] == [Receive(0, 3.0)] * 2
    assert effects[-1] == KeepKV(Role.TARGET, (), 0)
    assert part.lost


def test_a_group_that_is_told_to_stop_is_not_lost() -> None:
    request = Request(prompt=(1, 2), max_new_tokens=9)
    part = recoverable(Dsi(), request, Role.TARGET, fallback=Autoregressive(), patience_s=lambda: 3.0)
    list(run_alone(part.run(), messages=[ProbeReply(5), Stop()]))
    assert not part.lost


def test_groups_without_work_hear_that_the_draft_lives() -> None:
    """A right draft and slow groups that are never needed: one does all the work."""
    target = FakeTarget(seed=2)
    draft = FakeDraft(target=target, ranks=(0,), steepness=4, seed=1)
    shape = Dsi(num_draft_tokens=1, target_groups=3, verify_rows=2)
    request = Request(prompt=(1, 2), max_new_tokens=60)
    run = drive(shape, request, target=target, draft=draft, schedule=Schedule(bursts=(9, 9, 9, 1)), forgetful=True)
    assert run.output == target.output(request)
    quiet, longest = 0, 0
    for event in run.by(Role.DRAFT):
        if isinstance(event.effect, Commit):
            quiet += 1
        elif isinstance(event.effect, Send) and event.effect.peer == 2:
            quiet = 0
        longest = max(longest, quiet)
    assert longest <= 10


def test_search_space_holds_distinct_shapes() -> None:
    space = list(Dsi.search_space())
    assert len(set(space)) == len(space)


def test_one_target_group_is_refused() -> None:
    with pytest.raises(ValueError, match="target_groups is 1; expected at least 2"):
        Dsi(target_groups=1)
