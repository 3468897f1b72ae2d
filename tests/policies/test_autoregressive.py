from hypothesis import given, settings

from swiftspec.policies import Layout, Request
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Commit, KeepKV, Prefill, Role, Row, TargetForward
from tests.policies.fakes import FakeDraft, drafts, requests
from tests.policies.scripted import drive, run_alone


@settings(max_examples=50, deadline=None)
@given(request=requests(), draft=drafts())
def test_output_is_the_targets_own(request: Request, draft: FakeDraft) -> None:
    run = drive(Autoregressive(), request, target=draft.target, draft=None)
    assert run.output == draft.target.output(request)
    assert len(run.of(TargetForward)) == len(run.output) - 1


def test_one_row_a_token_and_everything_is_kept() -> None:
    request = Request(prompt=(5, 6), max_new_tokens=9, eos_token_ids=frozenset({3}))
    program = Autoregressive().programs(request)[Role.TARGET]
    effects = list(run_alone(program, target=lambda row: row.token - 1, choice=5))
    assert effects == [
        Prefill(Role.TARGET, (5, 6)),
        Commit((5,)),
        TargetForward((Row(5, 2, 0),)),
        KeepKV(Role.TARGET, (0,), 1),
        Commit((4,)),
        TargetForward((Row(4, 3, 0),)),
        KeepKV(Role.TARGET, (0,), 1),
        Commit((3,)),
    ]


def test_needs_no_draft_and_one_row() -> None:
    policy = Autoregressive()
    assert policy.layout is Layout.TARGET_ONLY
    assert (policy.target_rows, policy.draft_rows) == (1, 0)
    assert list(Autoregressive.search_space()) == [policy]
