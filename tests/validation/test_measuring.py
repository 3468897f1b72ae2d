"""Measurements when time runs out; complete ones are tested in tests/cli/test_pipeline.py."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from swiftspec.validation.measuring import _repetition

POLICIES = cast(Any, [SimpleNamespace(policy=name) for name in ("swiftspec", "serial_tree", "autoregressive")])
TASKS = cast(Any, list("abcdefgh"))


@pytest.mark.parametrize(("asked", "measured"), [(0, 3), (1, 4), (2, 5), (100, 8)])
def test_a_repetition_ends_between_prompts_and_every_policy_has_the_same(asked: int, measured: int) -> None:
    done, sweeps, questions = [], [], []

    def generate(candidate: Any, number: int) -> Any:
        done.append((candidate.policy, TASKS[number]))
        return TASKS[number]

    def stop() -> bool:
        questions.append(len(done))
        return len(questions) > asked

    found = _repetition(POLICIES, len(TASKS), generate, lambda: sweeps.append(len(done)), stop)
    assert {policy: list(tasks) for policy, tasks in found.items()} == {
        candidate.policy: TASKS[:measured] for candidate in POLICIES
    }
    assert [policy for policy, _ in done[:6]] == [
        *("swiftspec", "serial_tree", "autoregressive"),
        *("serial_tree", "autoregressive", "swiftspec"),
    ]
    assert sweeps[0] == 0
