"""Costs of requests from the rounds of two runs: what rounds were computed from is found again."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from swiftspec.studies.latency_law.rounds import RoundTable, derive_costs

VERIFY_S, DRAFT_S, REST_S = 0.020, 0.004, 0.001  # of a round that is alone
EACH_S = np.array([0.002, 0.0005, 0.0001])  # added to each part by a further request
ROW_S = np.array([0.0003, 0.0, 0.0])  # and by a row of another's prompt
ROUNDS, DRAFTS, PROMPT = 40.0, 4.0, 128.0
_Array = npt.NDArray[np.float64]


def table(num_decoding: _Array, prompt_rows: _Array, rounds: float = ROUNDS) -> RoundTable:
    """Rounds of a run in which so many requests decoded and so many rows were read."""
    alone_s = np.array([VERIFY_S, DRAFT_S, REST_S])
    return RoundTable(
        seconds=alone_s + np.outer(num_decoding - 1, EACH_S) + np.outer(prompt_rows, ROW_S),
        num_decoding=num_decoding,
        prompt_rows=prompt_rows,
        rounds=rounds,
        drafts=DRAFTS,
        prompt_tokens=PROMPT,
        prefill_s=0.050,
        e2e_s=0.050 + rounds * float(alone_s.sum()),
    )


ALONE = table(np.ones(50), np.zeros(50))
_RANDOM = np.random.default_rng(3)
TOGETHER = table(_RANDOM.integers(1, 9, 400).astype(float), _RANDOM.choice([0.0, 32.0], 400))


def test_parts_are_found_again_and_add_up() -> None:
    derived = derive_costs(ALONE, TOGETHER)
    assert derived is not None
    assert derived.costs.verify == pytest.approx((VERIFY_S, EACH_S[0]))
    assert derived.costs.draft == pytest.approx((DRAFT_S / DRAFTS, EACH_S[1] / DRAFTS))
    assert derived.costs.rest == pytest.approx((REST_S, EACH_S[2]))
    assert derived.costs.prefill == pytest.approx((0.050, PROMPT * ROW_S[0]))
    assert derived.total.c1_s == pytest.approx(ALONE.e2e_s)
    assert derived.total.c2_s == pytest.approx(ROUNDS * EACH_S.sum() + PROMPT * ROW_S[0])


def test_rounds_that_load_adds_are_the_others_share() -> None:
    """Half as many rounds again, among B - 1 others in the mean: each is charged its share of their seconds."""
    derived = derive_costs(ALONE, replace(TOGETHER, rounds=1.5 * ROUNDS))
    others = float(TOGETHER.num_decoding.mean()) - 1
    assert derived is not None
    assert derived.costs.verify.c2_s == pytest.approx(EACH_S[0] + 0.5 * (EACH_S[0] + VERIFY_S / others))
    assert derived.total.c1_s == pytest.approx(ALONE.e2e_s)


def test_nothing_is_derived_from_rounds_that_were_all_alone() -> None:
    assert derive_costs(ALONE, ALONE) is None


def test_rounds_of_no_request_are_none() -> None:
    assert RoundTable.of([]) is None
