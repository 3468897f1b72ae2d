"""A copy of a policy under another name is planned as the policy is: nobody knows policies by their names."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.planner.drafts.named import kinds_of
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.estimates import ClosedForms
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.space import feasible_options
from swiftspec.policies import POLICIES, DraftKind, Policy, registry
from swiftspec.policies.base import shape_of
from swiftspec.simulator.driver import Simulator
from tests.builders import with_guesses
from tests.planner.pairs import DEVICE, PAIR, QUANTISATION, composed_profile
from tools.iid_trace import synthesise_trace

NUM_DEVICES = 4


def trace_for(policy: type[Policy]) -> AcceptanceTrace:
    """A trace of a draft of a kind that the policy takes."""
    trace = with_guesses(synthesise_trace((0.6, 0.2), prompt_lengths=(30,), num_tokens=20, seed=1))
    return replace(trace, draft_kind=min(policy.drafts, key=list(DraftKind).index))


@pytest.fixture(params=POLICIES)
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[type[Policy], type[Policy]]:
    """A policy, and its copy."""
    original: Any = POLICIES[request.param]
    made = type(f"My{original.__name__}", (original,), {"name": f"my_{original.name}", "__module__": __name__})
    renamed: Any = dataclass(frozen=True, slots=True, kw_only=True)(made)
    monkeypatch.setitem(registry.POLICIES, renamed.name, renamed)
    return original, renamed


def planned(policy: type[Policy]) -> tuple[Any, ...]:
    """What a search finds and prices of a policy, without its name."""
    profile, trace = composed_profile(num_devices=NUM_DEVICES), trace_for(policy)
    memory = MemoryModel(device=DEVICE, specs=PAIR, quantisation=QUANTISATION)
    options, rejected = feasible_options(profile, trace, num_devices=NUM_DEVICES, memory=memory, policies={policy.name})
    closed, simulator = ClosedForms(profile, trace), Simulator(profile, trace)
    simulated = [
        simulator.run(option.policy, degrees=option.degrees, prompt_indices=[0]).timelines
        for option in options[:: max(1, len(options) // 4)]
    ]
    return (
        [described(option) for option in options],
        {reason.removeprefix("my_"): count for reason, count in rejected.items()},
        [closed.estimate(option) for option in options],
        simulated,
        [shape_of(shape) for shape in policy.host_shapes()],
    )


def described(option: Option) -> tuple[Any, ...]:
    return shape_of(option.policy), option.split, dict(option.groups)


@pytest.mark.parametrize("is_recurrent", [False, True])
def test_a_renamed_policy_is_planned_as_the_original(
    both: tuple[type[Policy], type[Policy]], is_recurrent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryModel, "is_recurrent", is_recurrent)
    original, renamed = map(planned, both)
    assert renamed == original
    options, rejected, *_ = original
    assert options or rejected
    if is_recurrent:
        trees = [shape_of(policy) for policy in both[0].search_space() if policy.verifies_trees]
        assert not any(shape in trees for shape, *_ in options)


def test_each_kind_of_draft_has_the_policies_that_make_most_of_it() -> None:
    def found(kind: DraftKind) -> list[tuple[str, ...]]:
        return [each.policies for each in kinds_of("draft", kind, num_devices=8)]

    assert found(DraftKind.SERIAL) == [("serial_chain", "serial_tree"), ("swiftspec",)]
    assert found(DraftKind.PARALLEL) == [("parallel_chain", "parallel_tree"), ("swiftspec_parallel",)]
    assert found(DraftKind.HEAD) == [("head_chain", "head_tree")]
    assert found(DraftKind.BLOCK) == [("parallel_chain", "parallel_tree")]
