from collections.abc import Callable
from dataclasses import replace

import pytest

from swiftspec.artifacts.profile import Profile, StepPoint
from swiftspec.artifacts.trace import Guesser
from swiftspec.planner.memory import MemoryModel
from swiftspec.planner.search.option import Option
from swiftspec.planner.search.space import feasible_options, fitted_temperature
from swiftspec.policies import POLICIES, DraftKind, Layout
from swiftspec.policies.asynchronous.dsi import Dsi
from swiftspec.policies.asynchronous.mirror import Mirror
from swiftspec.policies.asynchronous.ssd_head import SsdHead
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.base import lacks_mask, shape_of
from swiftspec.policies.chains.serial import SerialChain, SerialTree
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.timing.timeline import Phase
from tests.builders import OF_SERIAL_DRAFTS, constant_profile, divided_profile, machine_profile, with_guesses
from tests.planner.pairs import DEVICE, PAIR, QUANTISATION, composed_profile
from tools.iid_trace import synthesise_trace

TRACE = with_guesses(synthesise_trace((0.6, 0.2), prompt_lengths=(30,), num_tokens=20, seed=1))


TOO_FEW = "dsi: needs a device for the draft and one for each of two or more target groups, and there"


def without(profile: Profile, drop: Callable[[StepPoint], bool]) -> Profile:
    return profile.model_copy(update={"steps": tuple(step for step in profile.steps if not drop(step))})


def splits(options: list[Option], name: str) -> set[tuple[int, ...]]:
    return {tuple(map(len, option.groups.values())) for option in options if option.policy.name == name}


def test_every_shape_is_on_every_placement() -> None:
    options, rejected = feasible_options(machine_profile(num_devices=3), TRACE, num_devices=3)
    num_shapes = {name: len(list(policy.search_space())) for name, policy in OF_SERIAL_DRAFTS.items()}
    assert {name: sum(option.policy.name == name for option in options) for name in num_shapes if name != "dsi"} == {
        name: 3 * count for name, count in num_shapes.items() if name != "dsi"
    }
    assert splits(options, "serial_tree") == {(1,), (2,), (3,)}
    assert splits(options, "swiftspec") == {(1, 1), (1, 2), (2, 1)}
    others = (
        f"{name}: not with a serial draft{lacks_mask(cls(), DraftKind.SERIAL)}"
        for name, cls in POLICIES.items()
        if name not in num_shapes
    )
    assert set(rejected) == {f"{TOO_FEW} are 3", *others}


def test_several_target_groups_share_the_targets_devices_equally() -> None:
    options, _ = feasible_options(machine_profile(num_devices=5), TRACE, num_devices=5)
    pairs = [option for option in options if isinstance(option.policy, Dsi) and option.policy.target_groups == 2]
    assert splits(pairs, "dsi") == {(2, 1), (2, 2), (2, 3), (4, 1)}
    assert {option.degree(Role.TARGET) for option in pairs} == {1, 2}


def test_trees_are_ordered_at_the_temperature_that_fits_the_trace() -> None:
    options, _ = feasible_options(machine_profile(num_devices=2), TRACE, num_devices=2)
    fitted = fitted_temperature(TRACE)
    assert fitted != SerialTree().draft_temperature
    temperatures = {shape_of(option.policy).get("draft_temperature") for option in options}
    assert temperatures == {None, fitted}  # autoregressive and chains have none


def test_groups_are_disjoint_and_the_targets_devices_come_first() -> None:
    options, _ = feasible_options(machine_profile(num_devices=4), TRACE, num_devices=4)
    for option in options:
        devices = [device for role in Role if role in option.groups for device in option.groups[role]]
        assert devices == list(range(len(devices)))


def test_one_device_rejects_disaggregated_policies_with_the_reason() -> None:
    options, rejected = feasible_options(machine_profile(), TRACE, num_devices=1)
    assert {option.policy.layout for option in options} == {Layout.TARGET_ONLY, Layout.COLOCATED}
    too_few = {reason: count for reason, count in rejected.items() if "not with a serial draft" not in reason}
    assert {reason: count for reason, count in too_few.items() if not reason.startswith("dsi")} == {
        f"{name}: needs 2 devices, and there is 1": len(list(policy.search_space()))
        for name, policy in POLICIES.items()
        if policy.layout is Layout.DISAGGREGATED and name != "dsi"
    }
    assert f"{TOO_FEW} is 1" in rejected


def test_unmeasured_degrees_are_rejected_with_the_reason() -> None:
    profile = without(machine_profile(), lambda step: step.phase is Phase.EXPAND and step.degree == 2)
    options, rejected = feasible_options(profile, TRACE, num_devices=2)
    assert splits(options, "serial_tree") == {(1,)}
    assert splits(options, "autoregressive") == {(1,), (2,)}
    assert rejected["serial_chain: the draft's expand steps were not measured on 2 devices"] == len(
        list(SerialChain.search_space())
    )


def test_rows_far_beyond_the_measured_are_rejected_with_the_reason() -> None:
    profile = without(machine_profile(), lambda step: step.phase is Phase.VERIFY and step.rows > 8)
    options, rejected = feasible_options(profile, TRACE, num_devices=2)
    assert max(option.policy.target_rows for option in options) == 16
    too_wide = sum(policy.verify_rows > 16 for policy in SwiftSpec.search_space())
    assert rejected["swiftspec: more than 16 rows in one target forward, 2 x those measured"] == too_wide


def test_context_far_beyond_the_measured_is_rejected_with_the_reason() -> None:
    profile = without(machine_profile(), lambda step: step.context > 16)
    trace = synthesise_trace((0.6, 0.2), prompt_lengths=(50,), num_tokens=20, seed=1)
    options, rejected = feasible_options(profile, trace, num_devices=1)
    assert not options
    assert rejected["autoregressive: the trace's context of 70 is over 64, 4 x that measured"] == 1


def test_a_colocated_draft_has_the_targets_degree() -> None:
    assert Option(policy=SerialChain(), groups={Role.TARGET: (0, 1)}).degrees == {Role.TARGET: 2, Role.DRAFT: 2}
    split = Option(policy=SwiftSpec(), groups={Role.TARGET: (0, 1), Role.DRAFT: (2,)})
    assert split.degrees == {Role.TARGET: 2, Role.DRAFT: 1}


def test_simpler_is_a_plainer_policy_then_fewer_devices_then_fewer_rows() -> None:
    one, two = {Role.TARGET: (0,)}, {Role.TARGET: (0, 1)}
    options = [
        Option(policy=Autoregressive(), groups=two),
        Option(policy=SerialChain(num_draft_tokens=3), groups=one),
        Option(policy=SerialChain(num_draft_tokens=2), groups=two),
        Option(policy=SerialTree(verify_rows=6, expand_rows=8), groups=one),
        Option(policy=SerialTree(verify_rows=8, expand_rows=2), groups=one),
        Option(policy=SerialTree(verify_rows=8, expand_rows=4), groups=one),
        Option(policy=SwiftSpec(verify_rows=4, expand_rows=1), groups={Role.TARGET: (0,), Role.DRAFT: (1,)}),
    ]
    shuffled = [options[index] for index in (3, 0, 6, 1, 5, 2, 4)]
    assert sorted(shuffled, key=lambda option: option.simplicity) == options


@pytest.mark.parametrize("name", POLICIES)
def test_shapes_hold_numbers_and_tables_of_them_only(name: str) -> None:
    assert all(
        isinstance(value, int | float) or (type(value) is tuple and all(type(item) is float for item in value))
        for policy in POLICIES[name].search_space()
        for value in shape_of(policy).values()
    )


@pytest.mark.parametrize(
    ("guesser", "reason"),
    [
        (Guesser.FUZZY, "easyspec: the trace does not say what a draft with its layers in groups guesses"),
        (Guesser.EXIT, "mirror: the trace does not say what the first half of the target guesses"),
    ],
)
def test_a_trace_that_did_not_ask_whom_a_policy_asks_is_named(guesser: Guesser, reason: str) -> None:
    prompts = tuple(
        replace(prompt, guesses={other: prompt.draft for other in Guesser if other is not guesser})
        for prompt in TRACE.prompts
    )
    options, rejected = feasible_options(machine_profile(), replace(TRACE, prompts=prompts), num_devices=2)
    assert f"{reason}; record it again" in rejected
    assert reason.partition(":")[0] not in {option.policy.name for option in options}


def test_nothing_is_looked_up_in_a_text_that_was_made_up() -> None:
    options, rejected = feasible_options(machine_profile(), replace(TRACE, source="synthesised"), num_devices=1)
    assert "prompt_lookup" not in {option.policy.name for option in options}
    shapes = len(list(PromptLookup.search_space()))
    assert rejected["prompt_lookup: a synthesised trace has no text to draft from"] == shapes


def test_no_forward_is_divided_over_nodes() -> None:
    """Nodes of 8; where weights and profile have no say, so do they alone."""
    memory = MemoryModel(device=DEVICE, specs=PAIR, quantisation=QUANTISATION)
    options, rejected = feasible_options(composed_profile(num_devices=8), TRACE, num_devices=11, memory=memory)
    split = [option for option in options if isinstance(option.policy, SwiftSpec)]
    assert {option.groups[Role.DRAFT] for option in split if option.sizes == (6, 3)} == {(8, 9, 10)}
    assert {option.groups[Role.DRAFT] for option in split if option.sizes == (8, 3)} == {(8, 9, 10)}
    assert max(option.degree(role) for option in options for role in option.degrees) == 8
    assert rejected["autoregressive: one forward would be divided over nodes"] == 3


def test_hidden_states_are_not_sent_between_nodes() -> None:
    memory = MemoryModel(device=DEVICE, specs=PAIR, quantisation=QUANTISATION)
    trace = replace(TRACE, draft_kind=DraftKind.HEAD)
    profile = composed_profile(num_devices=8)
    options, rejected = feasible_options(profile, trace, num_devices=9, memory=memory, policies=["ssd_head"])
    assert {option.sizes for option in options}
    assert all(max(device for group in option.groups.values() for device in group) < 8 for option in options)
    reason = "ssd_head: hidden states would be sent between nodes, over links that are not known"
    assert rejected[reason] == len(list(SsdHead.search_space()))  # 8+1


def test_a_profile_without_halves_is_named() -> None:
    profile = without(machine_profile(), lambda step: step.phase is Phase.FINISH)
    _, rejected = feasible_options(profile, TRACE, num_devices=2)
    assert rejected["mirror: the target's finish steps were not measured on 1 device"] == len(
        list(Mirror.search_space())
    )


def test_a_split_that_another_one_beats_on_as_many_devices_is_dropped() -> None:
    """Drafting on two devices is slower than on one here, so that 1+2 is worse than 1+1, and 2+2 than 2+1."""
    profile = machine_profile(num_devices=4)
    slowed = profile.retimed(
        {
            step.table: 3.0
            for step in profile.steps
            if step.role is Role.DRAFT and step.degree in (2, 3) and step.phase is not Phase.PREFILL
        }
    )
    options, rejected = feasible_options(slowed, TRACE, num_devices=4)
    assert splits(options, "swiftspec") == {(1, 1), (2, 1), (3, 1)}
    assert rejected["swiftspec: another split of no more devices is faster"] == 3 * len(list(SwiftSpec.search_space()))
    # Both forwards count: a co-located target gains by more devices what its draft loses.
    assert splits(options, "serial_tree") == {(1,), (2,), (3,), (4,)}
    assert splits(options, "autoregressive") == {(1,), (2,), (3,), (4,)}


def test_splits_that_are_equally_fast_all_stay() -> None:
    options, _ = feasible_options(constant_profile(expand_s=0.1, verify_s=1.0), TRACE, num_devices=2)
    assert splits(options, "serial_tree") == {(1,), (2,)}


def named_splits(profile: Profile, name: str, *, num_devices: int, ranks: int | None = None) -> set[str]:
    options, _ = feasible_options(profile, TRACE, num_devices=num_devices, ranks=ranks)
    return {option.split for option in options if option.policy.name == name}


def test_groups_are_divided_where_the_profile_knows_what_that_costs() -> None:
    faster = divided_profile(factor=0.9, num_devices=3)
    # What three undivided devices take is no reason to drop two divided ones, nor the other way round.
    assert named_splits(faster, "serial_tree", num_devices=3) >= {"1", "2x1", "3"}
    assert named_splits(faster, "swiftspec", num_devices=3) >= {"2x1+1", "1+2x1"}
    slower = divided_profile(factor=1.5, num_devices=3)
    assert named_splits(slower, "serial_tree", num_devices=3) == {"1", "2", "3"}
    assert named_splits(machine_profile(num_devices=3), "serial_tree", num_devices=3) == {"1", "2", "3"}


def test_ranks_can_be_asked_for_however_slow_they_are() -> None:
    slower = divided_profile(factor=1.5, num_devices=3)
    assert named_splits(slower, "autoregressive", num_devices=3, ranks=2) == {"2x1"}
    assert named_splits(slower, "swiftspec", num_devices=3, ranks=2) == {"2x1+1", "1+2x1"}
    assert named_splits(slower, "serial_tree", num_devices=3, ranks=1) == {"1", "2", "3"}
    nothing, rejected = feasible_options(machine_profile(), TRACE, num_devices=2, ranks=2)
    assert nothing == []
    assert "serial_tree: the profile has none of its groups divided by 2 ranks" in rejected
