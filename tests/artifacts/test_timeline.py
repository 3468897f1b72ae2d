import pytest

from swiftspec.artifacts.metrics import Figures, Metrics, Totals, measure
from swiftspec.files.document import Spread
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase, Span, Timeline

TARGET, DRAFT = Role.TARGET, Role.DRAFT


def span(
    role: Role, phase: Phase, start_s: float, end_s: float, *, tokens: int = 0, rows: int = 0, model: Role | None = None
) -> Span:
    return Span(role, phase, model or role, rows, tokens, start_s, end_s)


def timeline(*spans: Span, start_s: float = 0.0) -> Timeline:
    return Timeline(request="r", start_s=start_s, spans=spans)


# Three tokens: one from the prefill, two from forwards of 2 s and 3 s.
AUTOREGRESSIVE = timeline(
    span(TARGET, Phase.PREFILL, 1.0, 3.0),
    span(TARGET, Phase.COMMIT, 3.0, 3.5, tokens=1),
    span(TARGET, Phase.VERIFY, 4.0, 6.0),
    span(TARGET, Phase.COMPACT, 6.0, 6.25),
    span(TARGET, Phase.COMMIT, 6.25, 6.5, tokens=1),
    span(TARGET, Phase.VERIFY, 7.0, 10.0),
    span(TARGET, Phase.COMPACT, 10.0, 10.5),
    span(TARGET, Phase.COMMIT, 10.5, 11.0, tokens=1),
    start_s=1.0,
)

# Two rounds of three and two tokens; the first subtree after the verdict of 8.5 s takes a forward, a miss.
SPECULATIVE = timeline(
    span(TARGET, Phase.PREFILL, 0.0, 2.0),
    span(DRAFT, Phase.PREFILL, 0.0, 1.0),
    span(DRAFT, Phase.EXPAND, 1.0, 2.5),
    span(TARGET, Phase.SEND, 2.0, 2.25),
    span(TARGET, Phase.WAIT, 2.25, 3.0),
    span(DRAFT, Phase.WAIT, 2.5, 2.625),
    span(DRAFT, Phase.SEND, 2.75, 2.875),
    span(TARGET, Phase.VERIFY, 3.0, 8.0),
    span(DRAFT, Phase.COMPACT, 3.0, 3.5),
    span(DRAFT, Phase.EXPAND, 4.0, 6.0),
    span(DRAFT, Phase.EXPAND, 7.5, 8.25),
    span(TARGET, Phase.SEND, 8.0, 8.25),
    span(TARGET, Phase.COMMIT, 8.25, 8.5, tokens=3),
    span(DRAFT, Phase.WAIT, 8.25, 8.5),
    span(DRAFT, Phase.COMPACT, 8.5, 8.75),
    span(TARGET, Phase.COMPACT, 8.5, 9.0),
    span(DRAFT, Phase.EXPAND, 8.75, 9.75),
    span(TARGET, Phase.WAIT, 9.0, 10.0),
    span(DRAFT, Phase.SEND, 9.75, 10.0),
    span(TARGET, Phase.VERIFY, 10.0, 12.0),
    span(DRAFT, Phase.EXPAND, 10.0, 12.5),
    span(TARGET, Phase.SEND, 12.0, 12.5),
    span(TARGET, Phase.COMMIT, 12.5, 13.0, tokens=2),
    span(DRAFT, Phase.WAIT, 12.5, 13.0),
)


def test_autoregressive_latencies_and_rounds() -> None:
    assert AUTOREGRESSIVE.num_tokens == 3
    assert AUTOREGRESSIVE.ttft_s == 2.5
    assert AUTOREGRESSIVE.e2e_s == 10.0
    assert AUTOREGRESSIVE.tpot_s == 7.5 / 2
    assert AUTOREGRESSIVE.round_s == [3.0, 4.0]
    assert AUTOREGRESSIVE.verified_tokens == 2  # the first token is the prefill's


def test_autoregressive_metrics() -> None:
    assert measure([AUTOREGRESSIVE]) == Metrics(
        figures=Figures(tokens_per_s=0.3, round_s=Spread(median=3.5, p95=3.95), tokens_per_round=1.0),
        num_tokens=3,
        rounds=2,
        ttft_s=2.5,
        tpot_s=3.75,
        overlap_fraction=0.0,
        verify_s=2.5,
        mean_round_s=3.5,
        target_busy=0.7,
        draft_busy=0.0,
        wasted_draft=None,
        tail_s=None,
        hit_fraction=None,
        drafts_per_round=0.0,
    )


def test_single_token_has_no_round_and_no_tpot() -> None:
    one = timeline(span(TARGET, Phase.PREFILL, 0.0, 1.0), span(TARGET, Phase.COMMIT, 1.0, 2.0, tokens=1))
    assert (one.round_s, one.tpot_s, one.verified_tokens) == ([], 0.0, 0)
    metrics = measure([one])
    assert metrics.figures == Figures(tokens_per_s=0.5, round_s=Spread(median=0.0, p95=0.0), tokens_per_round=0.0)
    assert (metrics.rounds, metrics.speed_of_light, metrics.light_fraction) == (0, 0.0, 0.0)


def test_speculative_latencies_and_rounds() -> None:
    assert SPECULATIVE.ttft_s == 8.5
    assert SPECULATIVE.round_s == [7.0, 3.0]
    assert SPECULATIVE.verified_tokens == SPECULATIVE.num_tokens == 5


def test_speculative_metrics() -> None:
    metrics = measure([SPECULATIVE])
    assert metrics.figures.tokens_per_s == 5 / 13
    assert metrics.figures.tokens_per_round == 2.5
    assert metrics.acceptance_length == 1.5
    assert metrics.verify_s == 3.5
    assert metrics.mean_round_s == 5.0
    assert metrics.speed_of_light == 2.5 / 3.5
    assert metrics.light_fraction == 0.7
    assert metrics.drafts_per_round == 2.5  # one of them, during the target's prefill, before the first round
    assert metrics.target_busy == 9 / 13  # 2 + 5 + 2 s of 13
    assert metrics.draft_busy == pytest.approx(8.75 / 13)  # 1 + 1.5 + 2 + 0.75 + 1 + 2.5 s


def test_acceptance_by_position_leaves_out_the_last_round() -> None:
    rounds = [
        each
        for start, tokens in enumerate((1, 4, 2, 3))
        for each in (
            span(TARGET, Phase.VERIFY, start, start + 0.5),
            span(TARGET, Phase.COMMIT, start + 0.5, start + 1.0, tokens=tokens),
        )
    ]
    assert measure([timeline(*rounds)]).acceptance == (2 / 3, 1 / 3, 1 / 3)
    assert measure([timeline(*rounds), SPECULATIVE]).acceptance == (3 / 4, 2 / 4, 1 / 4)
    assert measure([AUTOREGRESSIVE]).acceptance == ()


def test_decoding_speed_leaves_out_the_prefill() -> None:
    metrics = measure([SPECULATIVE])
    assert metrics.decoding_tokens_per_s > metrics.figures.tokens_per_s
    assert metrics.decoding_tokens_per_s == pytest.approx(
        metrics.figures.tokens_per_round * metrics.rounds / sum(SPECULATIVE.round_s)
    )


def test_overlap_is_the_share_of_target_busy_time_with_the_draft_busy() -> None:
    # Target busy: 2 + 5 + 0.5 + 2 s. The draft computes during 2 s of the prefill, 0.5 + 2 + 0.5 s of the first
    # verification, 0.5 s of the compaction and 2 s of the second verification.
    assert measure([SPECULATIVE]).overlap_fraction == pytest.approx(7.5 / 9.5)


def test_waiting_and_talking_are_not_busy() -> None:
    idle = timeline(
        span(TARGET, Phase.VERIFY, 0.0, 4.0),
        span(DRAFT, Phase.WAIT, 0.0, 2.0),
        span(DRAFT, Phase.SEND, 2.0, 3.0),
        span(DRAFT, Phase.EXPAND, 3.0, 9.0),
        span(TARGET, Phase.COMMIT, 4.0, 9.0, tokens=1),
    )
    assert measure([idle]).overlap_fraction == 0.25


def test_one_draft_span_may_overlap_several_target_spans() -> None:
    long = timeline(
        span(TARGET, Phase.VERIFY, 0.0, 2.0),
        span(DRAFT, Phase.EXPAND, 1.0, 7.0),
        span(TARGET, Phase.COMMIT, 2.0, 3.0, tokens=1),
        span(TARGET, Phase.VERIFY, 3.0, 4.0),
        span(TARGET, Phase.VERIFY, 6.0, 8.0),
        span(TARGET, Phase.COMMIT, 8.0, 8.5, tokens=1),
    )
    assert measure([long]).overlap_fraction == pytest.approx(3 / 5)


def test_several_target_groups_are_busy_on_their_own() -> None:
    first = [span(TARGET, Phase.VERIFY, 0.0, 4.0), span(TARGET, Phase.VERIFY, 4.0, 8.0)]
    second = span(TARGET, Phase.VERIFY, 2.0, 6.0)._replace(group=1)
    draft = [span(DRAFT, Phase.EXPAND, 0.0, 3.0), span(DRAFT, Phase.COMMIT, 8.0, 8.0, tokens=6)]
    subject = timeline(*first, second, *draft)
    metrics = measure([subject])
    assert subject.processes == [(TARGET, 0), (TARGET, 1), (DRAFT, 0)]
    assert metrics.target_busy == pytest.approx((8.0 + 4.0) / 2 / 8.0)
    assert metrics.overlap_fraction == pytest.approx((3.0 + 1.0) / 12.0)
    assert metrics.rounds == 3
    assert metrics.verify_s == pytest.approx(4.0)


def test_halves_of_a_verification_are_one_round() -> None:
    halves = (
        span(TARGET, Phase.EXIT, 0.0, 2.0, rows=3),
        span(TARGET, Phase.FINISH, 2.5, 4.0, rows=3),
        span(TARGET, Phase.COMMIT, 4.0, 4.0, tokens=2),
    )
    metrics = measure([timeline(*halves)])
    assert (metrics.rounds, metrics.figures.tokens_per_round) == (1, 2.0)
    assert metrics.verify_s == pytest.approx(3.5)
    assert metrics.mean_round_s == pytest.approx(4.0)


def test_colocated_process_overlaps_nothing() -> None:
    serial = timeline(
        span(TARGET, Phase.EXPAND, 0.0, 1.0, model=DRAFT),
        span(TARGET, Phase.VERIFY, 1.0, 3.0),
        span(TARGET, Phase.COMMIT, 3.0, 3.5, tokens=2),
    )
    metrics = measure([serial])
    assert (metrics.overlap_fraction, metrics.tail_s, metrics.hit_fraction) == (0.0, None, None)


def test_tail_is_verdict_received_to_subtree_sent_where_no_forward_was_needed() -> None:
    metrics = measure([SPECULATIVE])
    assert metrics.tail_s == Spread(median=0.25, p95=0.25)  # 2.625 .. 2.875; the other took a forward
    assert metrics.hit_fraction == 0.5


def test_only_the_first_message_after_a_verdict_ends_its_tail() -> None:
    twice = timeline(
        span(DRAFT, Phase.WAIT, 0.0, 1.0),
        span(DRAFT, Phase.SEND, 1.0, 1.5),
        span(DRAFT, Phase.SEND, 3.0, 4.0),
        span(TARGET, Phase.COMMIT, 0.0, 5.0, tokens=1),
    )
    assert measure([twice]).tail_s == Spread(median=0.5, p95=0.5)


def test_requests_are_taken_together() -> None:
    both = measure([AUTOREGRESSIVE, SPECULATIVE])
    assert both.figures.tokens_per_s == 8 / 23
    assert both.figures.tokens_per_round == 7 / 4
    assert both.figures.round_s.median == 3.5
    assert both.figures.round_s.p95 == pytest.approx(4 + 0.85 * 3)
    assert both.ttft_s == 5.5
    assert both.overlap_fraction == pytest.approx(7.5 / (9.5 + 7.75))


def test_spans_are_found_by_process_and_by_phase() -> None:
    assert [s.phase for s in SPECULATIVE.of(DRAFT)][:3] == [Phase.PREFILL, Phase.EXPAND, Phase.WAIT]
    assert [s.start_s for s in SPECULATIVE.phase(Phase.WAIT)] == [2.25, 2.5, 8.25, 9.0, 12.5]


def test_a_request_that_ended_before_its_first_token_counts_with_no_round() -> None:
    """As one that is stopped in its first verification."""
    cut_short = timeline(span(TARGET, Phase.PREFILL, 0.0, 1.0), span(TARGET, Phase.VERIFY, 1.0, 2.0))
    totals = Totals().plus(AUTOREGRESSIVE).plus(cut_short)
    assert (totals.requests, totals.tokens, totals.rounds, totals.verified_tokens) == (2, 3, 2, 2)
    assert totals.tokens_per_s == Totals().plus(AUTOREGRESSIVE).tokens_per_s


def test_nothing_to_measure_is_refused() -> None:
    for timelines in ([], [timeline(span(TARGET, Phase.PREFILL, 0.0, 1.0))]):
        with pytest.raises(ValueError, match="timelines are empty; at least one committed token each is needed"):
            measure(timelines)


def test_excerpt_is_of_whole_rounds_cut_at_both_ends() -> None:
    excerpt = SPECULATIVE.excerpt(first=1, num_rounds=1)
    # The second verification starts at 10 s; it is the last, whose round ends with its commit.
    assert (excerpt.start_s, excerpt.end_s) == (10.0, 13.0)
    assert [(s.phase, s.start_s, s.end_s) for s in excerpt.spans if s.role is DRAFT] == [
        (Phase.EXPAND, 10.0, 12.5),
        (Phase.WAIT, 12.5, 13.0),
    ]
    (cut,) = [s for s in SPECULATIVE.excerpt(first=0, num_rounds=1).spans if s.phase is Phase.SEND and s.start_s > 9]
    assert (cut.start_s, cut.end_s) == (9.75, 10.0)


def test_excerpt_of_more_rounds_than_there_are_is_all_of_them() -> None:
    excerpt = SPECULATIVE.excerpt()
    assert (excerpt.start_s, excerpt.end_s) == (3.0, 13.0)
    assert (excerpt.processes, SPECULATIVE.process_names) == ([(TARGET, 0), (DRAFT, 0)], ["target", "draft"])


def test_without_rounds_the_excerpt_is_everything() -> None:
    single = timeline(
        span(TARGET, Phase.PREFILL, 1.0, 3.0), span(TARGET, Phase.COMMIT, 3.0, 3.5, tokens=1), start_s=1.0
    )
    assert single.excerpt() == (1.0, 3.5, single.spans, [(TARGET, 0)])
