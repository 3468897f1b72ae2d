"""The best split per device, of models and devices as people have them, against all splits simulated."""

from swiftspec.artifacts.plan import Goal, Objective
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import Inputs, prepare
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.planned_model import planned_pair
from swiftspec.planner.search.evaluation import Budget, Evaluator
from swiftspec.planner.search.space import feasible_options
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.forward_errors import forward_errors
from tests.planner.making import made_plan

GOAL = Goal(objective=Objective.TOKENS_PER_GPU, tpot_s=5e-3)
MACHINE = Deployment(device="h100-sxm", num_devices=5)
PAIR = planned_pair("llama-3-70b", "llama-3.2-1b")
MEMORY = MemoryModel(
    device=MACHINE.spec,
    specs=dict(zip(Role, (model.spec for model in PAIR), strict=True)),
    quantisation=dict.fromkeys(Role, "bf16"),
)


def test_no_split_is_better_per_device_than_the_one_chosen() -> None:
    """Short simulations find the best one too slow for the limit by a little, which it is not."""
    inputs = prepare(MACHINE, target=PAIR[0], draft=PAIR[1])
    made = made_plan(
        profile=inputs.profile,
        trace=inputs.trace,
        num_devices=MACHINE.num_devices,
        policy="swiftspec",
        seed=0,
        num_jobs=1,
        progress=lambda *_: None,
        goal=GOAL,
        memory=MEMORY,
    )
    chosen = made.chosen
    assert chosen.prediction.metrics.figures.tokens_per_s / len(chosen.devices) >= 0.98 * best_of_all_splits(
        inputs, chosen.build()
    )
    assert len(chosen.devices) < MACHINE.num_devices


def best_of_all_splits(inputs: Inputs, shape: Policy) -> float:
    """Tokens/s per device of a shape on the best of its splits within the limit, all simulated on the whole trace."""
    options, _ = feasible_options(
        inputs.profile, inputs.trace, num_devices=MACHINE.num_devices, memory=MEMORY, policies={shape.name}
    )
    splits = [option for option in options if option.policy == shape]
    assert len(splits) > 2
    num_prompts = len(inputs.trace.prompts)
    whole = Budget(prompt_indices=tuple(range(num_prompts)), max_new_tokens=256, seeds=(0,), explain=True)
    evaluator = Evaluator(inputs.profile, inputs.trace, num_jobs=1, errors=forward_errors(inputs.profile))
    assert GOAL.tpot_s is not None
    return max(outcome.score(GOAL) for outcome in evaluator.run(splits, whole) if outcome.mean_tpot_s <= GOAL.tpot_s)
