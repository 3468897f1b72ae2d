"""Which client's request is next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.fair_queue import OUTPUT_WEIGHT, FairQueue


def test_the_requests_of_one_client_keep_their_order() -> None:
    queue = FairQueue()
    for request in range(5):
        queue.append(request, "a")
        queue.charge("a", 10 * request)
    assert [queue.popleft() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_an_empty_queue_has_no_head() -> None:
    with pytest.raises(IndexError, match="empty"):
        _ = FairQueue().head


def test_a_client_that_was_away_gets_no_more_than_its_share_afterwards() -> None:
    queue = FairQueue()
    for request in range(100):
        queue.append(request, "here")
    for _ in range(50):
        queue.popleft()
        queue.charge("here", 1)
    for request in range(100, 150):
        queue.append(request, "back")
    next_ones = []
    for _ in range(20):
        next_ones.append("back" if queue.popleft() >= 100 else "here")
        queue.charge(next_ones[-1], 1)
    assert 9 <= next_ones.count("back") <= 11, "half of the service, and nothing for the time before"


def test_clients_without_requests_are_forgotten() -> None:
    queue = FairQueue()
    for request in range(1000):
        queue.append(request, f"client {request}")
        assert queue.popleft() == request
        queue.charge(f"client {request}", 1)
    assert len(queue._service) <= 2


@given(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=60),
    st.lists(st.integers(1, 50), min_size=60, max_size=60),
    st.sets(st.integers(0, 59)),
)
def test_every_request_leaves_once_and_removed_ones_never(
    clients: list[str], costs: list[int], removed: set[int]
) -> None:
    queue = FairQueue()
    for request, client in enumerate(clients):
        queue.append(request, client)
    for request in removed:
        queue.remove(request)
    expected = [request for request in range(len(clients)) if request not in removed]
    assert len(queue) == len(expected)
    left = []
    while queue:
        request = queue.head
        assert queue.popleft() == request
        queue.charge(clients[request], costs[request])
        left.append(request)
    assert sorted(left) == expected
    for client in "abc":
        own = [request for request in left if clients[request] == client]
        assert own == sorted(own)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=100, max_size=100))
def test_clients_with_waiting_requests_have_nearly_equal_service(lengths: list[tuple[int, int]]) -> None:
    """The bound of the paper's theorem 4.8: twice the largest service of one request, for each that runs."""
    queue = AdmissionQueue(AdmissionLimits(max_running=2))
    for request, (prompt, output) in enumerate(lengths):
        queue.submit(request, num_tokens=prompt, max_tokens=prompt + output, client="ab"[request % 10 == 0])
    service = {"a": 0, "b": 0}
    waiting = {"a": 90, "b": 10}
    running: dict[int, int] = {}
    while waiting["a"] and waiting["b"]:
        for request in queue.admit():
            running[request] = lengths[request][1]
            service["ab"[request % 10 == 0]] += lengths[request][0]
            waiting["ab"[request % 10 == 0]] -= 1
        for request in list(running):
            running[request] -= 1
            prompt, output = lengths[request]
            queue.grow(request, prompt + output - running[request])
            service["ab"[request % 10 == 0]] += OUTPUT_WEIGHT
            if not running[request]:
                del running[request]
                queue.release(request)
        assert abs(service["a"] - service["b"]) <= 2 * 2 * (40 + OUTPUT_WEIGHT * 40)


def test_a_client_with_fewer_requests_makes_anothers_youngest_give_way() -> None:
    queue = AdmissionQueue(AdmissionLimits(max_running=4))
    for request in range(6):
        queue.submit(request, num_tokens=10, max_tokens=20, client="many")
    assert queue.make_way() == []
    assert queue.admit() == [0, 1, 2, 3]
    for request in (6, 7, 8):
        queue.submit(request, num_tokens=10, max_tokens=20, client="one")
    assert queue.make_way() == [3]
    assert queue.admit() == [6]
    queue.grow(0, 15)
    assert queue.make_way() == [2]
    assert queue.admit() == [7]
    assert queue.make_way() == [], "two each: whoever has had less is next when a place is free"
    for request in (0, 1):
        queue.release(request)
    queue.grow(6, 20)
    assert queue.admit() == [2, 3], "those that gave way come first of their client's"


def test_nobody_gives_way_to_another_client_directly_after_the_cache_was_full() -> None:
    queue = AdmissionQueue(AdmissionLimits(max_running=4, num_blocks=4))
    for request in range(4):
        queue.submit(request, num_tokens=16, max_tokens=32, client="many")
    assert queue.admit() == [0, 1, 2, 3]
    assert queue.grow(0, 17) == [3]
    queue.submit(4, num_tokens=16, max_tokens=32, client="one")
    assert queue.make_way() == []
    assert queue.admit() == []
    assert queue.make_way() == [2]
    assert queue.admit() == [4]


def test_a_client_alone_never_gives_way_to_itself() -> None:
    queue = AdmissionQueue(AdmissionLimits(max_running=2))
    for request in range(5):
        queue.submit(request, num_tokens=10, max_tokens=20)
    queue.admit()
    assert queue.make_way() == []


def test_clients_that_came_once_are_forgotten_while_others_wait() -> None:
    queue = FairQueue()
    for number in range(4):
        queue.append(number, "always there")
    for number in range(4, 5000):
        client = f"only once {number}"
        queue.append(number, client)
        request = queue.popleft()
        queue.charge(client, 30.0) if request == number else queue.append(request + 10**6, "always there")
        queue.charge("always there", 10.0)
    assert len(queue._service) < 200
