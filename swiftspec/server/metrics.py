"""Metrics for Prometheus. Names are those of vLLM with `swiftspec:` in front, where both mean the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from swiftspec.timing.timeline import Phase

if TYPE_CHECKING:
    from swiftspec.engine.api import EngineState, Generation
    from swiftspec.server.answer import Answer

_SHORT_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_LONG_S = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics(Collector):
    """Counters and histograms of a server's requests; gauges are read from the engine when asked for."""

    def __init__(self, state: Callable[[], EngineState | None]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._state = state
        self.num_finished = self.num_tokens = 0
        self._num_timed = self._num_rounds = 0
        self._sum_s = 0.0
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts")
        self._generation_tokens = self._counter("generation_tokens", "Output tokens")
        self._success = self._counter("request_success", "Requests that ended well, by reason", "finished_reason")
        self._failed = self._counter("request_failed", "Requests that ended with an error")
        self._cancelled = self._counter("request_cancelled", "Requests whose clients had gone")
        self._refused = self._counter("request_refused", "Requests that found no place to wait")
        self._drafts = self._counter("spec_decode_num_drafts", "Verifications of more than one row")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Draft tokens verified")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens accepted")
        self._accepted_at = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted, by place in the round", "position"
        )
        self._verifications = self._counter("verifications", "Forwards of the target after the prompt, per request")
        self._rows_granted = self._counter("rows_granted", "Rows verified")
        self._rows_asked = self._counter("rows_asked", "Rows that policies asked for")
        self._losses = self._counter("draft_losses", "Times that a request lost its draft")
        self._alone_s = self._counter("alone_seconds", "Seconds that requests spent without the draft they should have")
        self._slo_met = self._counter("slo_met", "Requests with limits that kept all of them")
        self._slo_missed = self._counter("slo_missed", "Requests with limits that missed one")
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token", _LONG_S)
        self._itl = self._histogram("inter_token_latency_seconds", "Time between commits", _SHORT_S)
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds", "Time per output token after the first", _SHORT_S
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token", _LONG_S)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to admission", _LONG_S)
        self._prefill = self._histogram("request_prefill_time_seconds", "Admission to first token", _LONG_S)
        self._decode = self._histogram("request_decode_time_seconds", "First to last token", _LONG_S)
        self._prompt_lengths = self._histogram("request_prompt_tokens", "Tokens of a prompt", _TOKENS)
        self._output_lengths = self._histogram("request_generation_tokens", "Tokens of an output", _TOKENS)
        self._rounds = self._histogram("round_tokens", "Tokens committed by a verification", _ROWS)

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(f"swiftspec:{name}", f"{says}.", labels, registry=self.registry)

    def _histogram(self, name: str, says: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"swiftspec:{name}", f"{says}.", registry=self.registry, buckets=buckets)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    @property
    def mean_request_s(self) -> float:
        """Mean seconds of the requests so far, from admission to the end."""
        return self._sum_s / self._num_timed if self._num_timed else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Mean tokens of the verifications so far."""
        return self.num_tokens / self._num_rounds if self._num_rounds else 0.0

    def refused(self) -> None:
        self._refused.inc()

    def ended(self, answer: Answer) -> None:
        """Count a request that the engine had accepted."""
        usage, generation = answer.usage, answer.stream.generation
        self.num_finished += 1
        self.num_tokens += usage.completion_tokens
        self._prompt_tokens.inc(usage.prompt_tokens)
        self._generation_tokens.inc(usage.completion_tokens)
        if generation is None:
            self._failed.inc()
            return
        if answer.finish is not None:
            self._success.labels(answer.finish).inc()
            self._prompt_lengths.observe(usage.prompt_tokens)
            self._output_lengths.observe(usage.completion_tokens)
        elif answer.why_cut_off:
            self._failed.inc()
        else:
            self._cancelled.inc()
        self._count_rounds(generation)
        if answer.commits_s:
            self._observe(answer, generation)

    def _count_rounds(self, generation: Generation) -> None:
        timeline = generation.timeline
        verified = [span.rows for phase in (Phase.VERIFY, Phase.FINISH) for span in timeline.phase(phase)]
        self._num_rounds += len(verified)
        self._verifications.inc(len(verified))
        self._rows_granted.inc(sum(verified))
        self._rows_asked.inc(generation.rows_asked)
        self._drafts.inc(sum(rows > 1 for rows in verified))
        self._draft_tokens.inc(sum(rows - 1 for rows in verified))
        for commit in timeline.commits[1:]:  # the first comes from the prompt
            self._rounds.observe(commit.tokens)
            self._accepted.inc(max(0, commit.tokens - 1))
            for place in range(commit.tokens - 1):
                self._accepted_at.labels(str(place)).inc()
        self._losses.inc(generation.losses)
        self._alone_s.inc(generation.alone_s)

    def _observe(self, answer: Answer, generation: Generation) -> None:
        """Times of a request, whether or not it ended by itself: as its client has them, but for the way to it."""
        ttft_s, e2e_s = answer.commits_s[0] - answer.arrival_s, answer.commits_s[-1] - answer.arrival_s
        num_tokens = answer.usage.completion_tokens
        queued_s = max(0.0, generation.begun_s - answer.arrival_s)
        self._num_timed += 1
        self._sum_s += e2e_s - queued_s
        self._ttft.observe(ttft_s)
        self._queue.observe(queued_s)
        self._prefill.observe(max(0.0, ttft_s - queued_s))
        for before_s, end_s in pairwise(answer.commits_s):
            self._itl.observe(end_s - before_s)
        if answer.finish is None:
            return
        self._e2e.observe(e2e_s)
        self._decode.observe(e2e_s - ttft_s)
        if num_tokens > 1:
            self._tpot.observe((e2e_s - ttft_s) / (num_tokens - 1))
        if (slo := answer.body.slo) is not None:
            tpot_s = (e2e_s - ttft_s) / max(1, num_tokens - 1)
            met = (slo.ttft_ms is None or 1e3 * ttft_s <= slo.ttft_ms) and (
                slo.tpot_ms is None or 1e3 * tpot_s <= slo.tpot_ms
            )
            (self._slo_met if met else self._slo_missed).inc()

    def collect(self) -> Iterator[Metric]:
        """What the engine says of itself when it is asked."""
        state = self._state()
        if state is None:
            return
        for name, says, value in (
            ("num_requests_running", "Requests that run", state.num_running),
            ("num_requests_waiting", "Requests that wait", state.num_waiting),
            ("kv_cache_usage_perc", "Share of the key-value caches in use, 1 is all", state.cache_usage),
        ):
            yield GaugeMetricFamily(f"swiftspec:{name}", f"{says}.", value=value)
        yield CounterMetricFamily("swiftspec:num_preemptions", "Requests that gave way.", value=state.num_preemptions)
        draft = GaugeMetricFamily("swiftspec:draft_state", "State of the draft.", labels=["state"])
        for each in type(state.draft):
            draft.add_metric([each], float(each is state.draft))
        yield draft
