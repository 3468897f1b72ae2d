"""Who runs, who waits, and who gives way."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.scheduler.admission import BLOCK_TOKENS, AdmissionLimits, AdmissionQueue, num_blocks


def queue(**limits: int) -> AdmissionQueue:
    return AdmissionQueue(AdmissionLimits(**{"max_running": 2, **limits}))


def submit(held: AdmissionQueue, *requests: int, num_tokens: int = 16, max_tokens: int = 32) -> list[bool]:
    return [held.submit(request, num_tokens=num_tokens, max_tokens=max_tokens) for request in requests]


def test_requests_run_in_the_order_in_which_they_came() -> None:
    held = queue()
    submit(held, 0, 1, 2, 3)
    assert held.admit() == [0, 1]
    assert held.admit() == []
    held.release(0)
    assert held.admit() == [2]
    assert (held.num_running, held.num_waiting) == (2, 1)


def test_requests_beyond_the_queue_are_refused() -> None:
    held = queue(max_waiting=1)
    assert submit(held, 0, 1, 2, 3) == [True, True, True, False]
    assert held.num_refused == 1
    held.admit()
    assert submit(held, 4) == [False]
    held.release(0)
    held.admit()
    assert submit(held, 5) == [True]


def test_a_request_without_room_waits_and_nobody_overtakes_it() -> None:
    held = queue(num_blocks=3, max_running=3)
    submit(held, 0, num_tokens=16)
    submit(held, 1, num_tokens=48, max_tokens=48)
    submit(held, 2, num_tokens=16)
    assert held.admit() == [0]
    held.release(0)
    assert held.admit() == [1]


def test_the_youngest_gives_way_to_a_text_that_grows_and_comes_back_first() -> None:
    held = queue(num_blocks=3, max_running=3)
    submit(held, 0, 1, 2, 3)
    assert held.admit() == [0, 1, 2]
    assert held.grow(0, 17) == [2]
    assert held.admit() == [], "not in the step in which somebody gave way"
    assert held.admit() == []
    held.release(0)
    assert held.admit() == [2, 3]
    assert held.num_preemptions == 1


def test_whoever_gave_way_begins_when_nobody_runs_any_more() -> None:
    """Also if the cache was full a moment ago: nobody else may come, and it would wait for ever."""
    held = queue(num_blocks=4, tree_rows=1)
    submit(held, 0, 1, max_tokens=48)
    assert held.admit() == [0, 1]
    assert held.grow(0, 33) == [1], "its last tokens need the other one's blocks"
    held.release(0)
    assert held.admit() == [1]


def test_a_request_may_have_to_give_way_itself() -> None:
    held = queue(num_blocks=2)
    submit(held, 0, 1)
    held.admit()
    assert held.grow(1, 17) == [1]
    assert held.num_running == 1
    assert held.grow(0, 32) == []


def test_the_rows_of_a_verification_need_room() -> None:
    held = queue(num_blocks=3, tree_rows=8)
    submit(held, 0, num_tokens=17, max_tokens=24)
    held.admit()
    assert held.num_free_blocks == 1


def test_what_could_never_fit_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="a request of 100 tokens needs 7 blocks of 16; the cache has 6"):
        submit(queue(num_blocks=6), 0, max_tokens=100)


@pytest.mark.parametrize(("field", "value"), [("max_running", 0), ("max_waiting", -1), ("num_blocks", 0)])
def test_limits_are_checked(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value}; expected at least"):
        queue(**{field: value})


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=12),
    num_blocks_=st.integers(8, 16),
    max_running=st.integers(1, 6),
    order=st.lists(st.integers(0, 11), max_size=200),
    clients=st.text("abc", min_size=12, max_size=12),
)
def test_blocks_are_never_overdrawn_and_everybody_ends(
    lengths: Sequence[tuple[int, int]], num_blocks_: int, max_running: int, order: Sequence[int], clients: str
) -> None:
    held = queue(num_blocks=num_blocks_, max_running=max_running)
    tokens = {number: prompt for number, (prompt, _) in enumerate(lengths)}
    ends = {number: sum(length) for number, length in enumerate(lengths)}
    for number in tokens:
        held.submit(number, num_tokens=tokens[number], max_tokens=ends[number], client=clients[number])
    running: list[int] = []
    turns = [*order, *range(12)] * 400
    for turn in turns:
        gone = held.make_way()
        running = [each for each in running if each not in gone] + held.admit()
        if not running:
            if not held.num_waiting:
                break
            continue
        number = running[turn % len(running)]
        tokens[number] = min(ends[number], tokens[number] + 7)
        gone = held.grow(number, tokens[number])
        running = [each for each in running if each not in gone]
        assert held.num_free_blocks is not None
        assert held.num_free_blocks >= 0
        assert held.num_running == len(running) <= max_running
        if number in running and tokens[number] == ends[number]:
            held.release(number)
            running.remove(number)
    assert held.num_running == held.num_waiting == 0
    assert held.num_free_blocks == num_blocks_


def test_blocks_hold_sixteen_tokens() -> None:
    assert BLOCK_TOKENS == 16
    assert [num_blocks(count) for count in (0, 1, 16, 17)] == [0, 1, 1, 2]
