import numpy as np
import pytest

from swiftspec.artifacts.load_metrics import Percentiles, ServedRecord, load_metrics
from swiftspec.artifacts.workload import RequestClass
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase, Span, Timeline


def record(
    arrival_s: float, *commits_s: float, tokens: int = 5, meets_limits: bool = True, class_name: str = ""
) -> ServedRecord:
    return ServedRecord(
        arrival_s=arrival_s,
        queued_s=0.1,
        commits_s=commits_s,
        num_tokens=tokens,
        num_rounds=len(commits_s),
        class_name=class_name,
        meets_limits=meets_limits,
    )


def test_latencies_are_those_of_vllm() -> None:
    metrics = load_metrics([record(1.0, 1.5, 2.0, 3.5), record(2.0, 4.0, tokens=1)])
    assert metrics.ttft_s.mean == pytest.approx((0.5 + 2.0) / 2)
    assert metrics.tpot_s.mean == pytest.approx(2.0 / 4), "a single token has no time per output token"
    assert metrics.itl_s.mean == pytest.approx((0.5 + 1.5) / 2)
    assert metrics.e2el_s.p50 == pytest.approx((2.5 + 2.0) / 2)
    assert metrics.duration_s == pytest.approx(3.0)
    assert metrics.request_throughput == pytest.approx(2 / 3)
    assert metrics.output_throughput == pytest.approx(6 / 3)
    assert metrics.tokens_per_round == pytest.approx(6 / 4)


def test_goodput_counts_requests_that_kept_their_limits() -> None:
    records = [record(0.0, 1.0, meets_limits=held, class_name=name) for held, name in ((True, "a"), (False, "b"))]
    metrics = load_metrics([*records, record(0.0, 2.0, class_name="b")])
    assert metrics.request_goodput == pytest.approx(2 / 2.0)
    assert metrics.attainment == {"a": 1.0, "b": 0.5}


def test_percentiles_are_numpys() -> None:
    values = np.random.default_rng(0).exponential(size=500)
    found = Percentiles.of(values)
    assert (found.p50, found.p99) == (np.percentile(values, 50), np.percentile(values, 99))
    assert Percentiles.of([]).mean == 0.0


def test_a_record_is_of_a_timeline_and_its_classes_limits() -> None:
    def span(phase: Phase, start_s: float, end_s: float, tokens: int = 0) -> Span:
        return Span(Role.TARGET, phase, Role.TARGET, 1, tokens, start_s, end_s)

    spans = (
        span(Phase.PREFILL, 1.2, 1.4),
        span(Phase.COMMIT, 1.4, 1.5, 1),
        span(Phase.VERIFY, 1.5, 2.4),
        span(Phase.COMMIT, 2.4, 2.5, 2),
    )
    timeline = Timeline(request="x", start_s=1.0, spans=spans)
    limits = RequestClass(name="chat", ttft_s=0.6, tpot_s=0.5)
    held = ServedRecord.of(timeline, limits, begun_s=1.1)
    assert held.meets_limits
    assert (held.ttft_s, held.e2e_s, held.tpot_s) == pytest.approx((0.5, 1.5, 0.5))
    assert (held.num_rounds, held.num_tokens) == (1, 3)
    assert held.queued_s == pytest.approx(0.1)
    assert held.class_name == "chat"
    for missed in ({"ttft_s": 0.4}, {"tpot_s": 0.4}):
        assert not held.judged(limits.model_copy(update=missed)).meets_limits
    assert held.judged(RequestClass(name="batch")).meets_limits
