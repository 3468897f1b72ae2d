"""The backtest composes forwards exactly as plans do."""

from dataclasses import replace

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.planner.deployment import Deployment as Planned
from swiftspec.planner.planned_model import planned_pair
from swiftspec.studies.backtest.speeds import Deployment as Backtested
from swiftspec.studies.backtest.standard_kernels import StandardInt4Kernels

PAIR = ("llama-3-70b", "llama-3.2-3b")
MAX_CONTEXT = 628  # of a backtest: a prompt of 500 tokens and an output of 128


def _content(profile: Profile) -> dict[str, object]:
    return profile.model_dump(exclude={"origin"})


def _planned(quant: str) -> Profile:
    machine = Planned(device="h800-sxm", num_devices=2, quant=quant)
    return machine.profile(*planned_pair(*PAIR), max_context=MAX_CONTEXT)


@pytest.mark.parametrize("quant", ["bf16", "int4"])
def test_a_backtest_has_the_profile_of_a_plan(quant: str) -> None:
    backtested = Backtested(device="h800-sxm", target=PAIR[0], draft=PAIR[1], quant=quant, num_devices=2)
    assert _content(backtested.profile) == _content(_planned(quant))


def test_a_backtest_has_the_profile_of_a_plan_with_a_head() -> None:
    target, head = PAIR[0], "eagle3"
    backtested = Backtested(device="h800-sxm", target=target, draft=head, quant="bf16", num_devices=2)
    planned = Planned(device="h800-sxm", num_devices=2).profile(*planned_pair(target, head), max_context=MAX_CONTEXT)
    assert _content(backtested.profile) == _content(planned)


def test_a_system_can_have_other_forwards_in_int4_than_plans() -> None:
    machine = {"device": "h800-sxm", "target": PAIR[0], "draft": PAIR[1], "quant": "int4", "num_devices": 2}
    backtested = replace(Backtested.of(machine), int4_forwards=StandardInt4Kernels)
    assert backtested.profile.steps != _planned("int4").steps
