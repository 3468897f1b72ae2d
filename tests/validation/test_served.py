"""Acceptance that a server counted, as rounds."""

import numpy as np
import pytest

from swiftspec.validation.served import DraftCounts


def test_rounds_have_the_acceptance_that_was_counted() -> None:
    counts = DraftCounts(steps=1000, drafts=1000, drafted=3000, by_position=(800, 600, 300))
    assert counts.survival == (0.8, 0.6, 0.3)
    rounds = counts.rounds(levels=3, seed=0)
    assert {one.verify_rows for one in rounds} == {4}
    assert {one.draft_rows for one in rounds} == {(1, 1, 1)}
    assert np.mean([one.tokens for one in rounds]) == pytest.approx(1 + 0.8 + 0.6 + 0.3, rel=0.03)


def test_steps_without_a_draft_have_one_row() -> None:
    counts = DraftCounts(steps=1000, drafts=400, drafted=2000, by_position=(200, 100, 100, 50, 50))
    rounds = counts.rounds(levels=0, seed=0)
    assert {one.verify_rows for one in rounds} == {1, 6}
    assert np.mean([one.verify_rows > 1 for one in rounds]) == pytest.approx(0.4, abs=0.05)
    assert np.mean([one.tokens for one in rounds]) == pytest.approx(1 + 500 / 1000, rel=0.05)


def test_a_server_that_never_drafted_decodes_plainly() -> None:
    counts = DraftCounts(steps=10, drafts=0, drafted=0, by_position=())
    assert [one.tokens for one in counts.rounds(levels=0, seed=0)] == [1]
