from typing import Any

import pytest

from swiftspec.policies.effects import Role
from swiftspec.studies.atts.document import AttsOptions, Ending
from swiftspec.studies.atts.log import SampleLog
from swiftspec.studies.atts.samples import Effect, NextTurn, Score, Select, Write, Written, sample

DRAFT, TARGET = Write(Role.DRAFT, 500), Write(Role.TARGET, 500)
OPTIONS = AttsOptions(num_turns=3)


def run(answers: dict[Effect, list[Any]]) -> tuple[list[Effect], Ending]:
    """The effects of a sample that is sent these answers, each kind in its order, and how it ends."""
    effects: list[Effect] = []
    program, answer = sample(OPTIONS), None
    while True:
        try:
            effect = program.send(answer)
        except StopIteration as ended:
            return effects, ended.value
        effects.append(effect)
        answer = None if isinstance(effect, NextTurn) else answers[effect].pop(0)


def test_a_turn_is_a_segment_its_score_and_perhaps_the_targets_segment() -> None:
    answers: dict[Effect, list[Any]] = {
        DRAFT: [Written(500), Written(500), Written(500)],
        TARGET: [Written(500)],
        Score(): [1.5, 2.5, 1.5],
        Select(1.5): [False, False],
        Select(2.5): [True],
    }
    plain = [DRAFT, Score(), Select(1.5)]
    expected = [*plain, NextTurn(), DRAFT, Score(), Select(2.5), TARGET, NextTurn(), *plain]
    assert run(answers) == (expected, Ending.TURNS)


def test_a_segment_with_the_answer_is_scored_too() -> None:
    answers: dict[Effect, list[Any]] = {DRAFT: [Written(7, Ending.MARKER)], Score(): [1.5], Select(1.5): [False]}
    assert run(answers) == ([DRAFT, Score(), Select(1.5)], Ending.MARKER)


def test_who_writes_last_ends_the_sample() -> None:
    answers: dict[Effect, list[Any]] = {
        DRAFT: [Written(7, Ending.END_OF_SEQUENCE), Written(0)],
        TARGET: [Written(9)],
        Score(): [2.5],
        Select(2.5): [True],
    }
    expected = [DRAFT, Score(), Select(2.5), TARGET, NextTurn(), DRAFT]
    assert run(answers) == (expected, Ending.END_OF_SEQUENCE)


def test_a_log_has_the_turns_that_were_decided() -> None:
    log = SampleLog()
    for effect, answer, start_s, end_s in (
        (DRAFT, Written(40), 0.0, 2.0),
        (Score(), 1.5, 2.0, 2.5),
        (Select(1.5), True, 2.5, 3.0),
        (TARGET, Written(60), 3.0, 6.0),
        (NextTurn(), None, 6.0, 7.0),
        (DRAFT, Written(0), 7.0, 8.0),
    ):
        log.note(effect, answer, start_s, end_s)
    found = log.sample(Ending.END_OF_SEQUENCE, 8.0, "text")
    (turn,) = found.turns
    assert (turn.draft_tokens, turn.target_tokens, turn.score, turn.is_taken_over) == (40, 60, 1.5, True)
    assert (turn.began_s, turn.drafted_s, turn.scored_s, turn.selected_s, turn.ended_s) == (0.0, 2.0, 2.5, 3.0, 6.0)
    assert (found.ending, found.ended_s, found.answer) == (Ending.END_OF_SEQUENCE, 8.0, "text")


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_samples", 0), ("budget", 1.5), ("num_turns", 0), ("temperature", -1.0), ("end_marker", "("), ("rule", "x")],
)
def test_options_that_are_none_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"options: {field} is"):
        AttsOptions.checked({field: value}, source="options")
