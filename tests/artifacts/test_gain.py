import pytest

from swiftspec.artifacts.gain import Gain, Verdict


@pytest.mark.parametrize(
    ("ratio", "verdict"), [(1.3, Verdict.GAINS), (1.1, Verdict.OPEN), (0.9, Verdict.OPEN), (0.7, Verdict.LOSES)]
)
def test_only_an_interval_without_1_is_a_verdict(ratio: float, verdict: Verdict) -> None:
    gain = Gain.within(ratio, spread=0.1)
    assert gain.verdict is verdict
    assert gain.low * gain.high == pytest.approx(ratio**2)


def test_the_larger_error_is_what_to_measure() -> None:
    assert "acceptance" in Gain.within(1.1, spread=0.05, acceptance=0.2).closed_by
    assert "loadtest" in Gain.within(1.1, spread=0.2, acceptance=0.05).closed_by
    assert Gain.within(1.1, spread=0.0).acceptance_share == 0
