"""A loss at large batches, of which only the direction is published."""

import pytest

from swiftspec.studies.adaserve.batch_loss import batch_gain, vllm_in_2025, without_host_time


def test_a_70b_targets_gain_falls_with_the_batch() -> None:
    gains = [batch_gain(without_host_time(), num_requests) for num_requests in (1, 8, 32, 256)]
    assert gains == sorted(gains, reverse=True)
    assert gains[2] > 2
    assert gains[3] < 0.5 * gains[0]


@pytest.mark.parametrize(("num_draft_tokens", "accepted_share"), [(5, 0.65), (8, 0.7)])
def test_in_vllm_of_that_month_it_gains_at_16_requests_and_loses_at_32(
    num_draft_tokens: int, accepted_share: float
) -> None:
    gains = [
        batch_gain(vllm_in_2025(), num_requests, num_draft_tokens=num_draft_tokens, accepted_share=accepted_share)
        for num_requests in (1, 16, 32)
    ]
    assert gains[0] > 1.2
    assert gains[1] > 1.05
    assert gains[2] < 0.95


def test_in_vllm_of_that_month_more_draft_tokens_lose_more() -> None:
    gains = [batch_gain(vllm_in_2025(), 64, num_draft_tokens=number, accepted_share=0.75) for number in (3, 5, 8)]
    assert gains == sorted(gains, reverse=True)
