"""A published loss by speculation, of a server's log."""

import pytest

from swiftspec.studies.backtest.losses import decoding_gain, logged_tokens_per_s, loss_rows
from swiftspec.studies.backtest.published import read_facts

LOSS = read_facts("losses")["mtp"]


@pytest.mark.parametrize("device", ["h100-sxm", "a100-sxm"])
def test_the_logged_loss_is_predicted_though_decoding_gains(device: str) -> None:
    assert logged_tokens_per_s(device) < 0.75 * LOSS["plain"]["tokens_per_s"]
    assert decoding_gain(device) > 1.3


def test_the_loss_is_a_row() -> None:
    (row,) = loss_rows()
    assert row.published == LOSS["drafted"]["tokens_per_s"]
    assert row.predicted == logged_tokens_per_s("h100-sxm")
    assert 0 < row.error < 0.5
