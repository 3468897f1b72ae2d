"""The setup of an engine process and the facts of a node, with defaults for the fields that a test does not set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from swiftspec.engine.cluster.rendezvous import NodeFacts
from swiftspec.engine.process.protocol import Setup
from swiftspec.policies.effects import Role

__all__ = ["node_facts", "setup"]

_SETUP = Setup(
    role=Role.TARGET,
    group=0,
    rank=0,
    size=1,
    tp_group="",
    models={},
    devices=(0,),
    device="cpu",
    channels=(),
    max_context=8,
    tree_slots=8,
)


def setup(**changes: Any) -> Setup:
    """A target without a model on the first core; `changes` are fields of `Setup`."""
    return replace(_SETUP, **changes)


def node_facts(rank: int, **changes: Any) -> NodeFacts:
    """One of two machines with two devices each; `changes` are fields of `NodeFacts`."""
    facts: dict[str, Any] = {
        "num_nodes": 2,
        "version": "1",
        "plan_sha256": "a" * 64,
        "address": f"192.0.2.{rank}",
        "folder": f"/folder-{rank}",
        "host": rank,
        "num_devices": 2,
        "ports": (5000, 5001),
    }
    return NodeFacts(rank=rank, **(facts | changes))
