"""Shapes for a load: what each of many requests drafts costs all of them."""

import pytest

from swiftspec.artifacts.distributions import Distribution, Process
from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.planner.load import Load
from swiftspec.policies.asynchronous.ssd import Ssd
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.timing.timeline import Phase
from swiftspec.workload import Arrivals, Lengths, make_workload
from tests.builders import machine_profile
from tests.planner.making import made_plan
from tools.iid_trace import synthesise_trace

TRACE = synthesise_trace((0.7, 0.15, 0.06, 0.03), prompt_lengths=(12, 20), num_tokens=48, seed=1)
FEW, MANY = Ssd(num_draft_tokens=3, branches=4), Ssd(num_draft_tokens=3, branches=24)


def costly_drafts() -> Profile:
    """A machine on which every further row of a draft's forward costs two thousandths of the first one."""
    whole = machine_profile(cost_ratio=6.0, noise=0.0)
    scaled = [
        step.model_copy(update={"quantiles_s": tuple((1 + 0.002 * step.rows) * one for one in step.quantiles_s)})
        if step.phase is Phase.EXPAND
        else step
        for step in whole.steps
    ]
    return whole.model_copy(update={"steps": tuple(scaled)})


def plan(load: Load | None) -> Plan:
    return made_plan(
        profile=costly_drafts(),
        trace=TRACE,
        num_devices=2,
        seed=0,
        num_jobs=1,
        progress=lambda *_: None,
        load=load,
        policy="ssd",
    )


def test_a_shape_that_is_worse_for_one_request_is_tried_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ssd, "search_space", classmethod(lambda _: iter((FEW, MANY))))
    monkeypatch.setattr("swiftspec.planner.search.space.policy_classes", lambda _: [Autoregressive, Ssd])
    workload = make_workload(
        Arrivals(process=Process.CLOSED, num_clients=12),
        num_requests=36,
        prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=16),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=40),
    )
    alone, together = (plan(load).chosen.build() for load in (None, Load(workload=workload)))
    assert isinstance(alone, Ssd)
    assert isinstance(together, Ssd)
    assert (alone.branches, together.branches) == (24, 4)
