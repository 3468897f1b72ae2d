"""Parts of fleet planning against closed forms: shares of a load, break-even loads, draft lengths, bisection."""

from collections.abc import Sequence

import numpy as np
import pytest

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.fleet import LoadPoint, ReplicaKind
from swiftspec.planner.fleet.replica import replica_share
from swiftspec.planner.fleet.result import break_evens, speed_at
from swiftspec.workload import Prefixes, make_workload

FIXED = Lengths(distribution=Distribution.FIXED, tokens=32)


def point(rate: float, user_tokens_per_s: float, *, keeps: bool = True, attained: float = 1.0) -> LoadPoint:
    return LoadPoint(
        rate=rate,
        num_requests=100,
        attained=attained,
        attainment={"default": attained},
        user_tokens_per_s=user_tokens_per_s,
        tokens_per_s=100 * rate,
        ttft_s=0.1,
        ttft_p95_s=0.2,
        tpot_s=1 / user_tokens_per_s,
        tpot_p95_s=1 / user_tokens_per_s,
        e2e_s=1.0,
        mean_batch=2.0,
        busy_fraction=0.5,
        keeps=keeps,
        keeps_up=keeps,
    )


def kind(policy: str, points: Sequence[LoadPoint], *, num_devices: int = 1) -> ReplicaKind:
    split = str(num_devices)
    return ReplicaKind(
        policy=policy,
        split=split,
        candidate=f"{policy} {split}",
        num_devices=num_devices,
        tokens_per_s=100.0,
        points=tuple(points),
    )


def test_a_share_is_every_nth_request_at_an_nth_of_the_rate() -> None:
    load = make_workload(
        Arrivals(process=Process.POISSON, rate=12.0),
        num_requests=600,
        prompt_tokens=FIXED,
        output_tokens=FIXED,
        seed=1,
    )
    share = replica_share(load, 4, most_requests=150)
    assert share.rate == pytest.approx(3.0, rel=0.01)
    firsts = [request.arrival_s for request in load.requests[::4]]
    assert [request.arrival_s for request in share.requests] == pytest.approx(firsts)
    # Every fourth of Poisson's gaps: their coefficient of variation is half as large.
    gaps_s = np.diff(firsts)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(0.5, rel=0.15)


def test_a_share_of_a_closed_loop_has_the_replicas_clients() -> None:
    """Rounded up: some replica has as many. Turns of conversations come with the requests before them."""
    closed = make_workload(
        Arrivals(process=Process.CLOSED, num_clients=7),
        num_requests=20,
        prompt_tokens=FIXED,
        output_tokens=FIXED,
        prefixes=Prefixes(turns=2, think_time_s=1.0),
    )
    share = replica_share(closed, 2, most_requests=9)
    assert (share.arrivals.num_clients, share.requests) == (4, closed.requests[:9])
    assert replica_share(closed, 3, rate=1.2).arrivals.num_clients == 2
    type(share).model_validate(share.model_dump())


def test_nobody_can_divide_a_moment_or_share_fewer_requests_than_replicas() -> None:
    open_load = make_workload(
        Arrivals(process=Process.POISSON, rate=2.0), num_requests=8, prompt_tokens=FIXED, output_tokens=FIXED
    )
    with pytest.raises(ValueError, match="num_replicas is 9; the workload has 8 requests"):
        replica_share(open_load, 9)
    chats = make_workload(
        open_load.arrivals, num_requests=8, prompt_tokens=FIXED, output_tokens=FIXED, prefixes=Prefixes(turns=2)
    )
    with pytest.raises(ValueError, match=r"requests\[1\]\.think_time_s is 0; a fleet at a rate cannot wait"):
        replica_share(chats, 2)


def test_a_share_of_a_load_in_stages_has_none() -> None:
    """Shares of all replicas follow one another, so that stages would come again and again."""
    staged = Arrivals.parse("constant:2x4,6x2", field="arrivals")
    load = make_workload(staged, prompt_tokens=FIXED, output_tokens=FIXED)
    share = replica_share(load, 2)
    assert (share.arrivals.stages, share.arrivals.rate, len(share.requests)) == ((), share.rate, 20)


def test_break_even_is_where_two_straight_lines_cross() -> None:
    """Speeds that fall with the logarithm of the load, from 200 and from 100 tokens/s, cross at its square root."""
    fast = kind("serial_chain", [point(1.0, 200), point(100.0, 50)])
    plain = kind("autoregressive", [point(1.0, 150), point(100.0, 100)])
    even, of_plain = break_evens([fast, plain], may_win=[True, True])
    assert even.plain_up_to == pytest.approx(10.0, rel=0.03)
    assert not even.is_open
    assert even.best_from == pytest.approx(1.0)
    assert even.best_to == pytest.approx(10.0, rel=0.03)
    assert of_plain.plain_up_to is None
    assert of_plain.best_from == pytest.approx(10.0, rel=0.03)
    assert of_plain.best_to == pytest.approx(100.0)


def test_a_kind_serves_nothing_beyond_the_first_load_at_which_it_misses_the_limits() -> None:
    lucky = kind("serial_chain", [point(1, 200), point(2, 150, keeps=False, attained=0.9), point(3, 120)])
    assert lucky.capacity == 1
    assert speed_at(lucky, [0.5, 1.0, 1.5]).tolist() == [200, 200, 0]
    assert speed_at(kind("serial_chain", [point(1, 200, keeps=False)]), [1.0]).tolist() == [0]
