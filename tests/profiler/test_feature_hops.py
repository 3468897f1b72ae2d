"""Hops with features beside the message, as a profile has them."""

import pytest

from swiftspec.artifacts.profile import HostPoint
from swiftspec.profiler.host_costs import feature_hops
from swiftspec.timing.latency import NUM_QUANTILES, Provenance
from swiftspec.timing.steps import hop_rows
from swiftspec.timing.timeline import Phase

PLAIN = HostPoint(
    phase=Phase.WAIT, rows=1, quantiles_s=(1e-4,) * NUM_QUANTILES, num_samples=9, provenance=Provenance.MEASURED
)


def test_hops_are_the_plain_ones_and_longer() -> None:
    points = list(feature_hops([PLAIN], feature_bytes=4 * 4096))
    assert [(point.rows, point.policy) for point in points] == [(hop_rows(count), "") for count in (8, 64, 512)]
    assert all(min(point.quantiles_s) >= 1e-4 for point in points)
    assert min(points[-1].quantiles_s) > 1e-4


@pytest.mark.parametrize(("host", "feature_bytes"), [([], 4096), ([PLAIN], 0)])
def test_there_are_none_without_a_head_or_a_plain_hop(host: list[HostPoint], feature_bytes: int) -> None:
    assert list(feature_hops(host, feature_bytes=feature_bytes)) == []
