"""Rules of the next step, on asks made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.policies.effects import ForwardKind, Role
from swiftspec.scheduler.asks import Ask, Step
from swiftspec.scheduler.batching import BatchLimits, WaitUntil, choose

LIMITS = BatchLimits(max_rows=16, prefill_rows=32, max_overtaken=3, gather_s=0.01)


def verification(
    request: int, rows: int = 4, *, elastic: bool = True, since_s: float = 0.0, num_overtaken: int = 0
) -> Ask:
    return Ask(
        request=request,
        model=Role.TARGET,
        kind=ForwardKind.EXACT,
        num_rows=rows,
        is_elastic=elastic,
        since_s=since_s,
        num_overtaken=num_overtaken,
    )


def draft(request: int, rows: int = 2, *, num_overtaken: int = 0) -> Ask:
    return Ask(request=request, model=Role.DRAFT, kind=ForwardKind.EXACT, num_rows=rows, num_overtaken=num_overtaken)


def prompt(request: int, tokens: int, model: Role = Role.TARGET, since_s: float = 0.0) -> Ask:
    return Ask(request=request, model=model, kind=ForwardKind.EXACT, num_rows=tokens, is_prefill=True, since_s=since_s)


def chosen(asks: Sequence[Ask], *, num_running: int | None = None, now_s: float = 1.0) -> dict[int, int]:
    """Rows of each request in the next step."""
    step = choose(asks, limits=LIMITS, num_running=num_running or len(asks), now_s=now_s)
    assert isinstance(step, Step)
    return dict(step.grants)


def test_nothing_is_computed_when_nothing_is_asked_for() -> None:
    assert choose([], limits=LIMITS, num_running=3, now_s=0.0) is None


def test_one_ask_is_granted_whole_whatever_its_size() -> None:
    assert chosen([verification(0, 40, elastic=False)]) == {0: 40}


def test_drafts_go_before_verifications() -> None:
    assert chosen([verification(0), draft(1), draft(2)]) == {1: 2, 2: 2}


def test_a_verification_is_overtaken_by_a_limited_number_of_drafts() -> None:
    assert chosen([verification(0, num_overtaken=2), draft(1)]) == {1: 2}
    assert chosen([verification(0, num_overtaken=3), draft(1)]) == {0: 4}


def test_verifications_wait_for_those_of_the_other_requests_but_not_for_long() -> None:
    asks = [verification(0, since_s=1.0), verification(1, since_s=1.005)]
    assert choose(asks, limits=LIMITS, num_running=3, now_s=1.006) == WaitUntil(1.01)
    assert chosen(asks, num_running=3, now_s=1.01) == {0: 4, 1: 4}
    assert chosen(asks, num_running=2, now_s=1.006) == {0: 4, 1: 4}


def test_nobody_waits_for_a_request_that_reads_its_prompt() -> None:
    asks = [verification(0, since_s=1.0), prompt(1, 100)]
    assert chosen(asks, num_running=2, now_s=1.0) == {0: 4, 1: 32}


def test_of_batches_that_take_turns_those_that_have_waited_longest_are_verified() -> None:
    turns = replace(LIMITS, num_batches=2)
    asks = [verification(request, since_s=1.0 - request / 1000) for request in range(5)]
    assert choose(asks[:2], limits=turns, num_running=5, now_s=1.001) == WaitUntil(asks[1].since_s + LIMITS.gather_s)
    for ready in (asks[:3], asks):
        step = choose(ready, limits=turns, num_running=5, now_s=1.001)
        assert isinstance(step, Step)
        assert [grant.request for grant in step.grants] == [ask.request for ask in ready[:-4:-1]]


def test_halves_are_finished_before_anything_else() -> None:
    half = Ask(request=1, model=Role.TARGET, kind=ForwardKind.SECOND_HALF, num_rows=4)
    assert chosen([draft(0), half, verification(2)]) == {1: 4}


def test_a_prompt_that_came_before_a_first_half_is_read_first() -> None:
    """It shares no half, and halves of the other requests would follow each other for ever."""
    half = verification(0, since_s=0.3)._replace(kind=ForwardKind.FIRST_HALF)
    assert chosen([half, prompt(1, 100, since_s=0.2)]) == {1: 32}
    assert chosen([half, prompt(1, 100, since_s=0.4)]) == {0: 4}


def test_kinds_do_not_mix() -> None:
    fuzzy = Ask(request=1, model=Role.DRAFT, kind=ForwardKind.LAYER_PARALLEL, num_rows=4, num_overtaken=1)
    assert chosen([draft(0), fuzzy, draft(2)]) == {1: 4}
    assert chosen([draft(0, num_overtaken=2), fuzzy, draft(2)]) == {0: 2, 2: 2}


def test_prompts_join_the_steps_of_their_own_model() -> None:
    assert chosen([draft(0), prompt(1, 20, Role.DRAFT), prompt(2, 20)]) == {0: 2, 1: 20}
    assert chosen([verification(0), prompt(2, 20)]) == {0: 4, 2: 20}


def test_a_draft_that_does_nothing_else_reads_its_prompts_before_a_verification() -> None:
    # Otherwise they would wait for as long as a control wants no drafts, and their requests with them.
    assert chosen([verification(0), prompt(1, 20, Role.DRAFT), prompt(2, 20)]) == {1: 20}
    overtaken = verification(0)._replace(num_overtaken=LIMITS.max_overtaken)
    assert chosen([overtaken, prompt(1, 20, Role.DRAFT), prompt(2, 20)]) == {0: 4, 2: 20}


def test_prompts_alone_are_read_in_chunks_those_asked_for_first() -> None:
    assert chosen([prompt(0, 100, since_s=0.2), prompt(1, 100, Role.DRAFT, since_s=0.1)]) == {1: 32}


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    assert chosen([prompt(0, 1000), prompt(1, 500), prompt(2, 10)]) == {0: 22, 2: 10}
    assert chosen([prompt(0, 5), prompt(1, 500)]) == {0: 5, 1: 27}


def test_elastic_verifications_share_the_rows_and_rigid_ones_wait_for_their_turn() -> None:
    assert chosen([verification(0, 12), verification(1, 12), verification(2, 2)]) == {0: 7, 1: 7, 2: 2}
    assert chosen([verification(0, 12, elastic=False), verification(1, 12)]) == {0: 12, 1: 4}
    rigid = [verification(0, 12, elastic=False), verification(1, 12, elastic=False, num_overtaken=1)]
    assert chosen(rigid) == {1: 12}


KINDS = {
    Role.TARGET: (ForwardKind.EXACT, ForwardKind.FIRST_HALF, ForwardKind.SECOND_HALF),
    Role.DRAFT: (ForwardKind.EXACT, ForwardKind.LAYER_PARALLEL),
}


def asks() -> st.SearchStrategy[list[Ask]]:
    def ask(request: int) -> st.SearchStrategy[Ask]:
        forms = st.sampled_from([(model, kind) for model, kinds in KINDS.items() for kind in kinds])
        return forms.flatmap(lambda form: ask_of_form(request, *form)) | st.builds(
            prompt, st.just(request), st.integers(1, 400), st.sampled_from(Role), st.floats(0, 1)
        )

    def ask_of_form(request: int, model: Role, kind: ForwardKind) -> st.SearchStrategy[Ask]:
        return st.builds(
            Ask,
            request=st.just(request),
            model=st.just(model),
            kind=st.just(kind),
            num_rows=st.integers(1, 40),
            is_prefill=st.just(False),
            is_elastic=st.booleans(),
            since_s=st.floats(0, 1),
            num_overtaken=st.integers(0, 4),
        )

    return st.integers(1, 8).flatmap(lambda count: st.tuples(*map(ask, range(count)))).map(list)


@given(asks=asks(), max_rows=st.integers(1, 64), prefill_rows=st.integers(1, 200), now_s=st.floats(1, 2))
def test_a_step_is_of_one_kind_within_its_limits_and_grants_what_was_asked(
    asks: list[Ask], max_rows: int, prefill_rows: int, now_s: float
) -> None:
    limits = BatchLimits(max_rows=max_rows, prefill_rows=prefill_rows)
    step = choose(asks, limits=limits, num_running=max(2, len(asks)), now_s=now_s)
    assert isinstance(step, Step)
    by_request = {ask.request: ask for ask in asks}
    granted = [(by_request[request], rows) for request, rows in step.grants]
    assert len(granted) == len({ask.request for ask, _ in granted}) > 0
    for ask, rows in granted:
        assert (ask.model, ask.kind) == (step.model, step.kind)
        assert 1 <= rows <= ask.num_rows
        assert rows == ask.num_rows or ask.is_elastic or ask.is_prefill
    if len(asks) > 1:  # one that is alone has its prompt read at once
        assert sum(rows for ask, rows in granted if ask.is_prefill) <= prefill_rows
    others = [(ask, rows) for ask, rows in granted if not ask.is_prefill]
    num_elastic = sum(ask.is_elastic for ask, _ in others)
    if step.kind is not ForwardKind.SECOND_HALF and len(others) > 1:
        assert sum(rows for _, rows in others) <= max(max_rows, num_elastic)


@pytest.mark.parametrize(
    ("field", "value"), [("max_rows", 0), ("prefill_rows", 0), ("max_overtaken", 0), ("gather_s", -1.0)]
)
def test_limits_are_checked(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} is {value}; expected at least"):
        BatchLimits(**{field: value})


def test_prompts_may_go_first_in_steps_of_their_own() -> None:
    apart = BatchLimits(max_rows=16, prefill_rows=32, prompts_apart=True)
    step = choose([verification(0), draft(1), prompt(2, 100)], limits=apart, num_running=3, now_s=1.0)
    assert isinstance(step, Step)
    assert dict(step.grants) == {2: 32}
    assert chosen([verification(0), prompt(2, 100)]) == {0: 4, 2: 32}
