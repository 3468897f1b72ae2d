from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.policies import Request
from swiftspec.policies.effects import Candidates, Commit, DraftForward, KeepKV, Prefill, Role, Row, TargetForward
from swiftspec.policies.lookup.suffix_or_draft import SuffixOrDraft
from tests.policies.fakes import FakeDraft, FakeTarget, drafts, requests
from tests.policies.scripted import drive, run_alone
from tests.policies.test_prompt_lookup import Periodic

shapes = st.builds(
    SuffixOrDraft,
    num_draft_tokens=st.integers(1, 6),
    least_score=st.sampled_from((0.3, 1.0, 2.0, 4.0)),
    verify_rows=st.integers(2, 9),
    max_tree_depth=st.integers(2, 12),
    max_spec_factor=st.sampled_from((0.5, 1.0, 4.0)),
)


@settings(max_examples=300, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts(), periodic=st.booleans())
def test_output_is_the_targets_own(shape: SuffixOrDraft, request: Request, draft: FakeDraft, periodic: bool) -> None:
    target: FakeTarget = Periodic(seed=draft.seed) if periodic else draft.target
    run = drive(shape, request, target=target, draft=draft)
    assert run.output == target.output(request)


@settings(max_examples=100, deadline=None)
@given(shape=shapes, request=requests(), draft=drafts())
def test_a_round_has_a_whole_chain_or_no_draft_forward(
    shape: SuffixOrDraft, request: Request, draft: FakeDraft
) -> None:
    run = drive(shape, request, target=Periodic(seed=draft.seed), draft=draft)
    forwards = [event.effect for event in run.events if isinstance(event.effect, DraftForward | TargetForward)]
    bounds = [-1, *[index for index, effect in enumerate(forwards) if isinstance(effect, TargetForward)]]
    assert {end - start - 1 for start, end in pairwise(bounds)} <= {0, shape.num_draft_tokens}


def test_rounds_exactly() -> None:
    # The text counts 0 1 2 3 0 1 2 3 ..; the draft only knows what follows 3.
    request = Request(prompt=(0, 1, 2, 3, 0, 1), max_new_tokens=8, eos_token_ids=frozenset({9}))
    shape = SuffixOrDraft(num_draft_tokens=2, least_score=2.0, verify_rows=3)
    effects = run_alone(
        shape.programs(request)[Role.TARGET],
        draft=lambda row: Candidates((row.token + 1,), (-0.5,)),
        target=lambda row: 5 if row.position == 7 else row.token + 1,
    )
    assert list(effects) == [
        Prefill(Role.TARGET, (0, 1, 2, 3, 0)),
        # 0 1 occurred before: two tokens are expected, and no draft is needed.
        TargetForward((Row(1, 5, 0b0), Row(2, 6, 0b1), Row(3, 7, 0b11))),
        Commit((2, 3, 5)),
        KeepKV(Role.TARGET, (0, 1, 2), 3),
        # 5 is new. The draft reads all that it missed, then drafts from the root.
        Prefill(Role.DRAFT, (0, 1, 2, 3, 0, 1, 2, 3), level=1),
        DraftForward((Row(5, 8, 0b0),), 1, level=1),
        DraftForward((Row(6, 9, 0b1),), 1, level=2),
        TargetForward((Row(5, 8, 0b0), Row(6, 9, 0b1), Row(7, 10, 0b11)), (-0.5, -1.0)),
        Commit((6, 7, 8)),
        KeepKV(Role.TARGET, (0, 1, 2), 3),
        KeepKV(Role.DRAFT, (0, 1), 2),
        DraftForward((Row(7, 10, 0b0), Row(8, 11, 0b1)), 1, level=1),
        DraftForward((Row(9, 12, 0b11),), 1, level=2),
        TargetForward((Row(8, 11, 0b0), Row(9, 12, 0b1), Row(10, 13, 0b11)), (-0.5, -1.0)),
        Commit((9,)),
    ]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens is 0; expected at least 1"),
        ({"least_score": 0.0}, "least_score is 0.0; expected a positive number"),
        ({"verify_rows": 1}, "verify_rows is 1; expected at least 2"),
    ],
)
def test_impossible_shapes_are_refused(shape: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SuffixOrDraft(**shape)


def test_search_space_holds_distinct_shapes() -> None:
    space = list(SuffixOrDraft.search_space())
    assert len(set(space)) == len(space)
