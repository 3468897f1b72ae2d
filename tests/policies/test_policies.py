import pytest

from swiftspec.policies import POLICIES, Layout, Request, make_policy
from swiftspec.policies.asynchronous.swiftspec import SwiftSpec
from swiftspec.policies.effects import Role


def test_policies_go_by_their_names_simplest_first() -> None:
    assert list(POLICIES) == [
        "autoregressive",
        "prompt_lookup",
        "suffix_decoding",
        "serial_chain",
        "serial_tree",
        "suffix_or_draft",
        "sequoia_tree",
        "eagle2_tree",
        "easyspec",
        "head_chain",
        "head_tree",
        "parallel_chain",
        "parallel_tree",
        "minedraft",
        "pearl",
        "specbranch",
        "amusd",
        "dsi",
        "ssd",
        "ssd_head",
        "mirror",
        "swiftspec_chain",
        "swiftspec",
        "swiftspec_parallel",
    ]
    assert all(policy.name == name for name, policy in POLICIES.items())


@pytest.mark.parametrize("name", POLICIES)
def test_layout_says_whose_programs_there_are(name: str) -> None:
    policy = make_policy(name)
    programs = policy.programs(Request(prompt=(1,), max_new_tokens=1))
    assert set(programs) == (set(Role) if policy.layout is Layout.DISAGGREGATED else {Role.TARGET})
    assert (policy.draft_rows == 0) == (policy.layout is Layout.TARGET_ONLY)


def test_policy_is_made_with_its_shape() -> None:
    assert make_policy("swiftspec", verify_rows=6) == SwiftSpec(verify_rows=6)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("magic", {}, "policy is 'magic'; expected one of autoregressive, prompt_lookup, "),
        ("autoregressive", {"rows": 3}, "autoregressive has no field 'rows'; it has none"),
        ("serial_chain", {"rows": 3}, "serial_chain has no field 'rows'; it has num_draft_tokens"),
        ("serial_chain", {"name": 3}, "serial_chain has no field 'name'; it has num_draft_tokens"),
        ("swiftspec", {"verify_rows": "8"}, "swiftspec.verify_rows is '8'; expected a whole number"),
        ("swiftspec", {"verify_rows": True}, "swiftspec.verify_rows is True; expected a whole number"),
        ("swiftspec", {"verify_rows": 1}, "verify_rows is 1; expected at least 2"),
    ],
)
def test_unknown_names_and_shapes_are_refused(name: str, shape: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(name, **shape)
