"""Counts between two readings of a server's metrics: its load, its acceptance and its service times."""

from typing import Final, NamedTuple

from swiftspec.acceptance.lengths import Drafted
from swiftspec.artifacts.advice import ObservedLoad
from swiftspec.errors import FieldError
from swiftspec.loadtest.readings import Reading

# How alike drafts of one request are (intraclass correlation of their accepted tokens): an assumption. A hundred drafts
# of one request tell as much as 6.3 of different ones.
ALIKE: Final = 0.15
_E2E: Final = "e2e_request_latency_seconds"
_TTFT: Final = "time_to_first_token_seconds"
_QUEUE: Final = ("request_queue_time_seconds", "queue_time_seconds")
_GROWING: Final = ("generation_tokens", "prompt_tokens", f"{_E2E}_count", f"{_TTFT}_count", "spec_decode_num_drafts")


class _Drafts(NamedTuple):
    tokens: int = 0
    number: float = 0.0
    share: float = 0.0
    survival: tuple[float, ...] = ()


def effective(drafts: float, requests: float) -> float:
    """Independent drafts that tell as much as these, of so many requests."""
    if not drafts:
        return 0.0
    each = max(1.0, drafts / requests)
    return drafts / (1 + (each - 1) * ALIKE)


def observed_load(before: Reading, after: Reading, *, seconds: float) -> ObservedLoad:
    """What was counted between two readings of one server.

    ValueError: if they are no two readings of it in this order, or no request has ended between them.
    """
    if not seconds > 0:
        raise FieldError("seconds", f"{seconds:g}", "expected more than 0, the time between the readings")
    if before.engine != after.engine:
        raise FieldError("after", f"a reading of {after.engine}", f"--before is one of {before.engine}")
    for name in _GROWING:
        if after.count(name) < before.count(name):
            less = f"{after.count(name):g} {name}, fewer than --before has ({before.count(name):g})"
            raise FieldError("after", f"a reading of {less}", "expected a later one of a server that has not restarted")
    counted = after.since(before)
    # The second and the third are of servers that do not count times of requests.
    ended = (f"{_E2E}_count", "request_success", "num_requests")
    requests = round(next((number for name in ended if (number := counted.count(name))), 0.0))
    output = counted.count("generation_tokens")
    if requests < 1 or output < 1:
        raise FieldError("seconds", f"{seconds:g}", "no request has ended meanwhile; expected a server under load")
    unknown: list[str] = []
    queue_s = next((counted.count(f"{name}_sum") for name in _QUEUE if counted.count(f"{name}_count")), None)
    if queue_s is None:
        unknown.append("How long requests wait is not counted; none is taken to wait.")
    drafts = _drafts(counted, after, requests, unknown)
    return ObservedLoad(
        engine=after.engine,
        seconds=seconds,
        requests=requests,
        prompt_tokens=counted.mean("request_prompt_tokens") or max(1.0, counted.count("prompt_tokens") / requests),
        output_tokens=counted.mean("request_generation_tokens") or output / requests,
        cached_share=_cached_share(counted, unknown),
        present=_present(counted, after, seconds, unknown),
        waiting=None if queue_s is None else max(0.0, queue_s) / seconds,
        ttft_s=counted.mean(_TTFT),
        tpot_s=_tpot_s(counted, requests, drafts),
        e2e_s=counted.mean(_E2E),
        itl_s=counted.mean("inter_token_latency_seconds"),
        tokens_per_step=counted.mean("iteration_tokens_total") or counted.mean("iteration_tokens"),
        draft_tokens=drafts.tokens,
        drafts=drafts.number,
        draft_share=drafts.share,
        survival=drafts.survival,
        effective_drafts=effective(drafts.number, requests),
        preemptions=max(0.0, counted.count("num_preemptions") or counted.count("num_retracted_requests")),
        cache_tokens=after.cache_tokens or int(after.count("max_total_num_tokens")) or None,
        unknown=tuple(unknown),
    )


def _present(counted: Reading, after: Reading, seconds: float, unknown: list[str]) -> float:
    """Requests in the server at once, by Little's law; as its gauges have them where it counts no times."""
    if counted.count(f"{_E2E}_sum") > 0:
        return counted.count(f"{_E2E}_sum") / seconds
    names = ("num_requests_running", "num_requests_waiting", "num_running_reqs", "num_queue_reqs")
    unknown.append("Times of requests are not counted; as many as ran at the second reading are taken to run always.")
    return max(1.0, sum(after.count(name) for name in names))


def _cached_share(counted: Reading, unknown: list[str]) -> float | None:
    for hits, queries in (
        ("prefix_cache_hits", "prefix_cache_queries"),
        ("prompt_tokens_cached", "prompt_tokens"),
        ("cached_tokens", "prompt_tokens"),
    ):
        if hits in counted.values and counted.count(queries) > 0:
            return min(1.0, max(0.0, counted.count(hits)) / counted.count(queries))
    unknown.append("Which share of the prompts is in the prefix cache is not counted; it is taken as none.")
    return None


def _tpot_s(counted: Reading, requests: int, drafts: _Drafts) -> float:
    """Seconds of an output token after a request's first one."""
    later = counted.count("generation_tokens") - requests
    per_chunk = counted.mean("inter_token_latency_seconds")
    decode_s = counted.count("request_decode_time_seconds_sum")
    if not decode_s:
        decode_s = counted.count(f"{_E2E}_sum") - counted.count(f"{_TTFT}_sum")
    if found := counted.mean("request_time_per_output_token_seconds"):
        return found
    if later > 0 and decode_s > 0:
        return decode_s / later
    if per_chunk:
        return per_chunk / (1 + drafts.share * sum(drafts.survival))
    raise FieldError("after", "a reading without times per token", "expected those of requests, or between tokens")


def _drafts(counted: Reading, after: Reading, requests: int, unknown: list[str]) -> _Drafts:
    drafts, drafted = (counted.count(f"spec_decode_num_{name}") for name in ("drafts", "draft_tokens"))
    if "spec_num_draft_tokens" in after.values:
        return _mean_drafts(counted, after, requests, unknown)
    if drafts <= 0:
        unknown.append("Nothing was drafted: what a draft's acceptance would be is not known.")
        return _Drafts()
    steps = counted.count("generation_tokens") - requests - counted.count("spec_decode_num_accepted_tokens")
    survival = tuple(min(1.0, count / drafts) for count in counted.by_position)
    length = round(drafted / drafts)
    if not survival:
        mean = counted.count("spec_decode_num_accepted_tokens") / drafts
        survival = Drafted(steps=length).even_survival(1 + mean)
        unknown.append("Acceptance by position is not counted; each token is taken to be accepted as often.")
    if abs(drafted / drafts - length) > 0.1:
        unknown.append(f"Drafts have different lengths, {drafted / drafts:.1f} tokens in the mean.")
    return _Drafts(max(1, length), drafts, min(1.0, drafts / max(steps, 1.0)), survival)


def _mean_drafts(counted: Reading, after: Reading, requests: int, unknown: list[str]) -> _Drafts:
    """Of a server that tells the rows of a verification, and the mean tokens of a round alone."""
    rows, verified = round(after.count("spec_num_draft_tokens")), counted.count("spec_verify_calls")
    later = counted.count("generation_tokens") - requests
    length = later / verified if verified > 0 else after.count("spec_accept_length")
    if not 1 <= length <= max(rows, 1) or rows < 2:
        unknown.append("Nothing was drafted, or not as it is counted here: a draft's acceptance is not known.")
        return _Drafts()
    unknown.append("Acceptance by position is not counted; each token is taken to be accepted as often.")
    return _Drafts(rows - 1, verified or later / length, 1.0, Drafted(steps=rows - 1).even_survival(length))
