import pytest

from swiftspec.policies.effects import (
    Message,
    PeerError,
    Role,
    Row,
    Stop,
    Subprogram,
    Subtree,
    Verdict,
    prefill,
    receive_subtree,
)


def result_of(step: Subprogram[Subtree], message: Message) -> Subtree:
    """Return value of a step of one receive, given a message."""
    next(step)
    with pytest.raises(StopIteration) as stopped:
        step.send(message)
    subtree: Subtree = stopped.value.value
    return subtree


def test_subtree_becomes_rows_that_see_their_ancestors_only() -> None:
    subtree = Subtree(7, (10, 11, 12, 13, 14), (-1, 0, 0, 2, 3))
    assert subtree.rows() == (
        Row(10, 7, 0b00000),
        Row(11, 8, 0b00001),
        Row(12, 8, 0b00001),
        Row(13, 9, 0b00101),
        Row(14, 10, 0b01101),
    )


def test_prefill_of_nothing_is_no_effect() -> None:
    assert list(prefill(Role.DRAFT, ())) == []


def test_subtree_under_the_last_verified_token_is_received() -> None:
    subtree = Subtree(3, (5, 6, 7), (-1, 0, 1))
    assert result_of(receive_subtree(5, 3, max_rows=3), subtree) == subtree


@pytest.mark.parametrize(
    "message",
    [
        Stop(),
        Verdict((5,)),
        None,
        Subtree(3, (), ()),
        Subtree(4, (5, 6), (-1, 0)),  # another position
        Subtree(3, (6, 5), (-1, 0)),  # another root
        Subtree(3, (5, 6, 7, 8), (-1, 0, 0, 0)),  # too many rows
        Subtree(3, (5, 6), (-1,)),
        Subtree(3, (5,), (-1, 0)),
        Subtree(3, (5, 6), (0, 0)),
        Subtree(3, (5, 6), (-1, -1)),  # two roots
        Subtree(3, (5, 6, 7), (-1, 2, 0)),  # a child before its parent
        Subtree(3, (5, 6), (-1, 1)),  # its own parent
        Subtree(3, (5, 6), (-1, 9)),
    ],
)
def test_everything_else_is_the_peers_fault(message: Message) -> None:
    step = receive_subtree(5, 3, max_rows=3)
    next(step)
    with pytest.raises(PeerError, match="expected up to 3 nodes under token 5 at position 3, got"):
        step.send(message)
