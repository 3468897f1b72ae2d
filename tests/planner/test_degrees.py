import pytest

from swiftspec.engines import engine_named
from swiftspec.models import known_model
from swiftspec.planner.degrees import ANY_DEGREES, AllowedDegrees
from swiftspec.planner.search.option import Option
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role

SPECS = {Role.TARGET: known_model("llama-3-70b").spec, Role.DRAFT: known_model("qwen2.5-0.5b").spec}
VLLM = AllowedDegrees(engine=engine_named("vllm"), specs=SPECS)  # 64 heads of 8 KV heads; 14 of 2
APART, TOGETHER, ALONE = (make_policy(name) for name in ("swiftspec", "serial_chain", "autoregressive"))


@pytest.mark.parametrize("size", [1, 2])
def test_engines_divide_whole_heads(size: int) -> None:
    assert VLLM.objection(Option.placed(TOGETHER, (size,))) is None


@pytest.mark.parametrize(
    ("engine", "policy", "lacking"),
    [
        ("vllm", "swiftspec", "vLLM has no draft on devices of its own"),
        ("vllm", "ssd", "vLLM has no draft on devices of its own, unless --draft-device names some"),
        ("sglang", "ssd", "SGLang has no draft on devices of its own"),
        ("vllm", "serial_tree", "vLLM verifies chains"),
        ("vllm", "eagle2_tree", "vLLM verifies chains"),
        ("sglang", "eagle2_tree", None),
        ("sglang", "serial_tree", "SGLang does not draft so"),
        ("sglang", "prompt_lookup", None),
        ("sglang", "suffix_decoding", "SGLang does not draft so"),
        ("trtllm", "suffix_decoding", "TensorRT-LLM does not draft so"),
        ("llamacpp", "prompt_lookup", "llama.cpp does not draft so"),
    ],
)
def test_plans_for_an_engine_have_only_what_it_can_be_told(engine: str, policy: str, lacking: str | None) -> None:
    rule = AllowedDegrees(engine=engine_named(engine), specs=SPECS)
    sizes = (2, 1) if policy == "swiftspec" else (2,)
    objection = rule.objection(Option.placed(make_policy(policy), sizes))
    assert objection == (None if lacking is None else f"{policy}: {lacking}")


@pytest.mark.parametrize(
    ("policy", "lacking"),
    [
        ("ssd", None),
        ("swiftspec_chain", None),
        ("swiftspec", "vLLM verifies chains"),
        ("dsi", "vLLM does not draft so"),
    ],
)
def test_beside_a_draft_server_chains_are_planned(policy: str, lacking: str | None) -> None:
    rule = AllowedDegrees(engine=VLLM.engine, specs=SPECS, draft_server=True)
    objection = rule.objection(Option.placed(make_policy(policy), (2, 1)))
    assert objection == (None if lacking is None else f"{policy}: {lacking}")


def test_loads_of_an_engine_with_trees_are_predicted_for_chains_only() -> None:
    loaded = AllowedDegrees(engine=engine_named("sglang"), specs=SPECS, chains_only=True)
    assert loaded.objection(Option.placed(make_policy("eagle2_tree"), (2,))) == "eagle2_tree: SGLang verifies chains"


@pytest.mark.parametrize(
    ("option", "role", "degree"),
    [
        (Option.placed(ALONE, (7,)), "target", 7),
        (Option.placed(ALONE, (3,)), "target", 3),
        (Option.placed(TOGETHER, (4,)), "draft", 4),  # divides its two KV heads, but not its 14 heads
        (Option.placed(TOGETHER, (8,)), "draft", 8),
        (Option.placed(ALONE, (6,)), "target", 6),
    ],
)
def test_what_an_engine_cannot_divide_is_named(option: Option, role: str, degree: int) -> None:
    assert VLLM.objection(option) == f"{option.policy.name}: vLLM cannot divide the {role}'s heads by {degree}"
    assert ANY_DEGREES.objection(option) is None


def test_a_target_alone_needs_no_draft_that_can_be_divided() -> None:
    assert VLLM.objection(Option.placed(ALONE, (8,))) is None


def test_every_group_has_an_allowed_size() -> None:
    allowed = AllowedDegrees(sizes=frozenset({1, 2, 4, 8}))
    assert allowed.objection(Option.placed(APART, (4, 2))) is None
    assert (
        allowed.objection(Option.placed(APART, (5, 1)))
        == "swiftspec: a group's size is not one of those allowed, 1, 2, 4, 8"
    )
    # Of six devices in two target groups each forward runs on three.
    several = make_policy("dsi", target_groups=2)
    assert allowed.objection(Option.placed(several, (6, 1))) is not None
    assert allowed.objection(Option.placed(several, (4, 1))) is None
