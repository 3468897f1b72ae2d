from dataclasses import replace

import numpy as np
import pytest

from swiftspec.artifacts.trace import AcceptanceTrace, Guesser, Guesses, TracedPrompt
from swiftspec.policies import DraftKind
from swiftspec.policies.effects import Role, Row, Stop, Verdict
from swiftspec.simulator.oracle import MASK_TOKEN, CandidatePool, SimulatedKVCache, TraceOracle
from tools.iid_trace import synthesise_trace

PATH = (0, 0, 7, 8, 9)  # a prompt of two tokens, an output of three


def small_trace(**kwargs: int) -> AcceptanceTrace:
    return synthesise_trace((0.6, 0.3), prompt_lengths=(2, 3), num_tokens=kwargs.get("num_tokens", 4), seed=1)


def oracle(trace: AcceptanceTrace, prompt_index: int = 0) -> TraceOracle:
    return TraceOracle(CandidatePool(trace), trace.prompts[prompt_index], prompt_index=prompt_index, seed=(0,))


def mirror_after_prefill() -> SimulatedKVCache:
    mirror = SimulatedKVCache(PATH)
    mirror.prefill(1)
    return mirror


def test_rows_follow_the_path_only_behind_rows_that_do() -> None:
    mirror = mirror_after_prefill()
    # The root; a right and a wrong token below it; the path's token below each of them.
    rows = (Row(0, 1, 0), Row(7, 2, 0b1), Row(5, 2, 0b1), Row(8, 3, 0b11), Row(8, 3, 0b101))
    assert mirror.append(rows) == [True, True, False, True, False]


def test_compaction_moves_what_is_known_of_a_slot() -> None:
    mirror = mirror_after_prefill()
    mirror.append((Row(0, 1, 0), Row(5, 2, 0b1), Row(7, 2, 0b1), Row(8, 3, 0b101)))
    mirror.keep((0, 2, 3), 2)
    assert mirror.prefix_length == 3
    assert mirror.append((Row(9, 4, 0b1),)) == [True]


def test_rows_beyond_the_trace_are_off_the_path() -> None:
    mirror = SimulatedKVCache(PATH)
    mirror.prefill(4)
    assert mirror.append((Row(9, 4, 0), Row(0, 5, 0b1))) == [True, False]


@pytest.mark.parametrize(
    ("slots", "num_verified", "complaint"),
    [
        ((0, 3), 1, "different ones of the 3 in use"),
        ((0, -1), 1, "different ones of the 3 in use"),
        ((0, 1, 1), 1, "different ones of the 3 in use"),
        ((0, 2), 2, "the first 2 to hold the target's own output"),
        ((0,), 2, "the first 2 to hold the target's own output"),
    ],
)
def test_impossible_compactions_are_errors(slots: tuple[int, ...], num_verified: int, complaint: str) -> None:
    mirror = mirror_after_prefill()
    mirror.append((Row(0, 1, 0), Row(7, 2, 0b1), Row(5, 2, 0b1)))
    with pytest.raises(ValueError, match=complaint):
        mirror.keep(slots, num_verified)


@pytest.mark.parametrize("row", [Row(7, 2, 0b10), Row(7, 3, 0b1), Row(7, 1, 0b1)])
def test_rows_without_a_place_are_errors(row: Row) -> None:
    mirror = mirror_after_prefill()
    mirror.append((Row(0, 1, 0),))
    with pytest.raises(ValueError, match="a row for slot 1 at position"):
        mirror.append((row,))


def test_target_says_what_was_recorded_on_the_path_and_nothing_off_it() -> None:
    trace = small_trace()
    output = trace.prompts[0].target_tokens.tolist()
    subject = oracle(trace)
    assert subject.prefill(Role.TARGET, (0, 0)) == output[0]
    rows = (Row(output[0], 2, 0), Row(output[1], 3, 0b1), Row(-5, 3, 0b1), Row(output[2], 4, 0b11))
    assert subject.target(rows) == (output[1], output[2], -1, output[3])


def test_draft_says_what_was_recorded_on_the_path() -> None:
    trace = small_trace()
    prompt = trace.prompts[1]
    output = prompt.target_tokens.tolist()
    subject = oracle(trace, 1)
    subject.prefill(Role.DRAFT, (0, 0))
    answers = subject.draft((Row(0, 2, 0), Row(output[0], 3, 0b1)), 2)
    assert [answer.tokens for answer in answers] == [tuple(tokens) for tokens in prompt.draft.tokens[:2].tolist()]
    assert [answer.logprobs for answer in answers] == [tuple(logs) for logs in prompt.draft.logprobs[:2].tolist()]


@pytest.mark.parametrize(("num_tokens", "position"), [(4, 3), (100, 3), (100, 50), (100, 99)])
def test_draft_off_the_path_draws_from_the_positions_nearby(num_tokens: int, position: int) -> None:
    trace = small_trace(num_tokens=num_tokens)
    subject = oracle(trace)
    subject.prefill(Role.DRAFT, (0,) * position)
    answers = set()
    for _ in range(400):
        (answer,) = subject.draft((Row(-5, position, 0),), 2)
        subject.keep(Role.DRAFT, (), 0)
        answers.add(answer.tokens)
    index = position - (trace.prompts[0].prompt_length - 1)
    nearby = trace.prompts[0].draft.tokens[max(0, index - 16) : index + 16, :2]
    assert answers == {tuple(tokens) for tokens in nearby.tolist()}


def test_asking_for_more_candidates_than_recorded_gives_what_there_is() -> None:
    subject = oracle(small_trace())
    subject.prefill(Role.DRAFT, (0,))
    (answer,) = subject.draft((Row(0, 1, 0),), 50)
    assert len(answer.tokens) == len(answer.logprobs) == 2


def test_no_candidates_at_all_is_an_error() -> None:
    trace = small_trace()
    bare = replace(
        trace.prompts[0], guesses={Guesser.DRAFT: Guesses(np.zeros((4, 0), np.int32), np.zeros((4, 0), np.float32))}
    )
    pool = CandidatePool(replace(trace, prompts=(bare,)))
    with pytest.raises(ValueError, match="num_candidates is 8, but prompt synthetic-0 of the trace has none"):
        pool.of(0, 8)


@pytest.mark.parametrize(("limit", "expected"), [(None, 4), (3, 3), (100, 4)])
def test_a_request_ends_where_the_trace_does(limit: int | None, expected: int) -> None:
    assert oracle(small_trace()).request(limit).max_new_tokens == expected


def trace_ahead(kind: DraftKind) -> AcceptanceTrace:
    """A trace whose guess of output token t, without the d tokens before it, is the token 100 * d + t."""
    trace = small_trace(num_tokens=6)

    def with_ahead(prompt: TracedPrompt) -> TracedPrompt:
        tokens = np.arange(6)[:, None, None] + 100 * np.arange(1, 3)[None, :, None]
        return replace(prompt, ahead=Guesses(tokens, np.zeros(tokens.shape)))

    return replace(trace, draft_kind=kind, prompts=tuple(map(with_ahead, trace.prompts)))


def test_a_mask_gets_what_was_guessed_without_the_tokens_that_it_masks() -> None:
    trace = trace_ahead(DraftKind.PARALLEL)
    subject, output = oracle(trace), trace.prompts[0].target_tokens.tolist()
    subject.prefill(Role.DRAFT, (0,))
    known = trace.prompts[0].draft.tokens[:, 0].tolist()
    # The root, the first output token, and three masks below it, one more than were recorded.
    rows = (Row(0, 1, 0), Row(output[0], 2, 0b1), *(Row(MASK_TOKEN, 3 + i, (1 << i + 2) - 1) for i in range(3)))
    guessed = [candidates.tokens[0] for candidates in subject.draft(rows, 1)]
    assert guessed == [known[0], known[1], 100 + 2, 200 + 3, 200 + 4]


def test_masks_off_the_path_get_what_was_guessed_as_far_ahead_nearby() -> None:
    trace = trace_ahead(DraftKind.PARALLEL)
    subject = oracle(trace)
    subject.prefill(Role.DRAFT, (0,))
    answers = subject.draft((Row(0, 1, 0), Row(-5, 2, 0b1), Row(MASK_TOKEN, 3, 0b11)), 1)
    assert 100 <= answers[2].tokens[0] < 200


def test_a_mask_can_be_dropped_but_not_verified() -> None:
    mirror = mirror_after_prefill()
    mirror.append((Row(0, 1, 0), Row(MASK_TOKEN, 2, 0b1)))
    with pytest.raises(ValueError, match="the first 2 to hold the target's own output"):
        mirror.keep((0, 1), 2)
    mirror.keep((0,), 1)
    assert mirror.append((Row(7, 2, 0),)) == [True]


def test_a_head_guesses_as_far_ahead_as_its_own_hidden_states_go() -> None:
    trace = trace_ahead(DraftKind.HEAD)
    subject, output = oracle(trace), trace.prompts[0].target_tokens.tolist()
    subject.prefill(Role.TARGET, (0,))
    subject.prefill(Role.DRAFT, (0,))
    rows = (Row(0, 1, 0), Row(output[0], 2, 0b1), Row(output[1], 3, 0b11))
    known = trace.prompts[0].draft.tokens[:, 0].tolist()
    assert [candidates.tokens[0] for candidates in subject.draft(rows, 1)] == [known[0], 101, 202]


def test_a_head_apart_knows_from_verdicts_what_is_verified() -> None:
    trace = trace_ahead(DraftKind.HEAD)
    subject, output = oracle(trace), trace.prompts[0].target_tokens.tolist()
    known = trace.prompts[0].draft.tokens[:, 0].tolist()
    subject.hear(Verdict(()))
    subject.prefill(Role.DRAFT, (0,))
    rows = (Row(0, 1, 0), Row(output[0], 2, 0b1))
    assert [candidates.tokens[0] for candidates in subject.draft(rows, 1)] == [known[0], 101]
    subject.hear(Verdict((output[0], output[1])))
    subject.keep(Role.DRAFT, (0,), 1)
    longer = (Row(output[0], 2, 0), Row(output[1], 3, 0b1), Row(output[2], 4, 0b11))
    assert [candidates.tokens[0] for candidates in subject.draft(longer, 1)] == [known[1], known[2], 103]


def test_a_verdict_carries_the_features_that_none_carried_before() -> None:
    subject = oracle(trace_ahead(DraftKind.HEAD))
    subject.prefill(Role.TARGET, (0,))
    assert subject.num_features(Stop()) == 0
    assert subject.num_features(Verdict(())) == 1
    subject.target((Row(0, 1, 0),))
    subject.keep(Role.TARGET, (0,), 1)
    assert subject.num_features(Verdict((3,))) == 1
    assert subject.num_features(Verdict(())) == 0
    serial = oracle(small_trace(num_tokens=6))
    serial.prefill(Role.TARGET, (0,))
    assert serial.num_features(Verdict(())) == 0
