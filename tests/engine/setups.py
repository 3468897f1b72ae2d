"""The setup of an engine process, with defaults for the fields that a test does not set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from swiftspec.engine.process.protocol import Setup
from swiftspec.policies.effects import Role

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
    vocab_size=16,
    max_context=8,
    tree_slots=8,
)


def setup(**changes: Any) -> Setup:
    """A target without a model on the first core; `changes` are fields of `Setup`."""
    return replace(_SETUP, **changes)
