"""Sending a workload: an open or a closed loop of requests, each in a thread of its own."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from uuid import uuid4

import numpy as np

from swiftspec.artifacts.load_metrics import MeasuredLoad, ServedRecord, load_metrics
from swiftspec.artifacts.prompts import Prompt, stretched
from swiftspec.artifacts.workload import Workload
from swiftspec.loadtest.client import ServerClient
from swiftspec.loadtest.streams import StreamedCompletion
from swiftspec.timing.timeline import Timeline

_MOST_AT_ONCE = 2048
_TOO_MANY = 429
_WARM_UP_TOKENS = 8
_KEPT_WITHIN_S, _LOOK_EVERY_S = 2.0, 0.05
_WAIT_S = 1.0  # for an end; then for another such time

PromptTokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentLoad(MeasuredLoad):
    """A workload as its clients saw it. Rounds are chunks; TTFT includes the wait for admission.

    timelines: if the server keeps them; on its clock.
    answers: in the order of the workload.
    start_s: when the workload began, on the clock of the answers.
    failures: number of requests that failed, by sentence; those that were refused for overload are not among them.
    """

    answers: tuple[StreamedCompletion, ...]
    start_s: float
    failures: dict[str, int]


def encoded_prompts(client: ServerClient, prompts: Sequence[Prompt], *, model: str) -> list[PromptTokens]:
    """Token ids of prompts by the server's tokenizer. ValueError if one has none."""
    found = []
    for prompt in prompts:
        tokens = client.tokenize(prompt.text, model=model)
        if not tokens:
            raise ValueError(f"prompt {prompt.prompt_id} is empty: it has no tokens")
        found.append(tokens)
    return found


def drawn_prompts(
    workload: Workload, prompts: Sequence[PromptTokens], *, seed: int, names: Sequence[str] = ()
) -> list[PromptTokens]:
    """A prompt for each of the workload's requests, in the request's length: the one that it names, else one drawn.

    Stretches that requests share have the same tokens: those of one of the prompts, from another place on in each.

    names: of the prompts.
    """
    drawn = np.random.default_rng([seed, 1]).integers(len(prompts), size=len(workload.requests)).tolist()
    numbers, named = dict[str, int](), {name: index for index, name in enumerate(names)}
    found = []
    for index, asked in zip(drawn, workload.requests, strict=True):
        index = named.get(asked.prompt_id or "", index)
        tokens: list[int] = []
        for name, length in asked.shared:
            number = numbers.setdefault(name, len(numbers))
            text = prompts[number % len(prompts)]
            start = number // len(prompts) % len(text)
            tokens += stretched((*text[start:], *text[:start]), length)
        own = asked.prompt_tokens - len(tokens)
        found.append((*tokens, *(stretched(prompts[index], own) if own else ())))
    return found


def send_workload(
    client: ServerClient,
    workload: Workload,
    prompts: Sequence[PromptTokens],
    *,
    model: str,
    progress: Callable[[int, int, str], None],
) -> SentLoad:
    """Send every request at its time, or as soon as a client of the closed loop is free.

    prompts: one for each request, see `drawn_prompts`. model: the server's name of it.

    ValueError: if no request ended well.
    """
    first = client.complete(prompts[0], model=model, num_tokens=_WARM_UP_TOKENS)
    if first.error:
        raise ValueError(f"--url {client.url}: the first request failed: {first.error}")
    requests = workload.requests
    limits = {each.name: each for each in workload.classes}
    name, answers = uuid4().hex, dict[int, StreamedCompletion]()
    names = {number: f"{name}-{number}" for number in range(len(requests))}
    at_once = workload.arrivals.num_clients
    start_s = time.perf_counter()

    def send(number: int) -> StreamedCompletion:
        asked = requests[number]
        return client.complete(
            prompts[number],
            model=model,
            num_tokens=asked.output_tokens,
            client=asked.client,
            request_id=names[number],
            limits=limits[asked.class_name],
        )

    with ThreadPoolExecutor(min(at_once or _MOST_AT_ONCE, len(requests))) as threads:
        pending: dict[Future[StreamedCompletion], int] = {}

        def submit(number: int) -> None:
            pending[threads.submit(send, number)] = number

        def take(within_s: float) -> int:
            if not pending:
                time.sleep(within_s)
            done, _ = wait(pending, timeout=within_s, return_when=FIRST_COMPLETED)
            for future in done:
                answers[pending.pop(future)] = future.result()
                progress(len(answers), len(requests), "requests")
            return len(answers)

        late_s = send_in_turn([asked.arrival_s for asked in requests], at_once, submit, take)
    ordered = [answers[number] for number in range(len(requests))]
    num_answered = sum(not answer.error for answer in ordered)
    return _sent(workload, ordered, start_s, late_s, _timelines(client, names, num_answered))


def send_in_turn(
    arrivals_s: Sequence[float], at_once: int | None, send: Callable[[int], None], take: Callable[[float], int]
) -> float:
    """Send each request at its time, or when a client of a closed loop is free, and wait until all have ended.

    at_once: clients of a closed loop, in which all arrive at 0.
    send: a request by its number.
    take: waits for ends, at most so many seconds, and returns how many there were so far.

    Returns the longest delay of a request after its arrival in seconds; 0 in a closed loop.
    """
    start_s, late_s, ended = time.perf_counter(), 0.0, 0
    for number, arrival_s in enumerate(arrivals_s):
        while at_once is not None and number - ended >= at_once:
            ended = take(_WAIT_S)
        while (left_s := start_s + arrival_s - time.perf_counter()) > 0:
            ended = take(left_s)
        late_s = max(late_s, -left_s) if at_once is None else 0.0
        send(number)
    while ended < len(arrivals_s):
        ended = take(_WAIT_S)
    return late_s


def _timelines(client: ServerClient, names: Mapping[int, str], num_answered: int) -> dict[int, Timeline]:
    """By the number of their request. The server keeps one a moment after the request's last token.

    names: what the server calls the requests.
    """
    until_s = time.monotonic() + _KEPT_WITHIN_S
    while True:
        kept = client.timelines()
        by_request = {each.request: each for each in kept if each.commits}
        found = {number: by_request[asked] for number, asked in names.items() if asked in by_request}
        if not kept or len(found) >= num_answered or time.monotonic() > until_s:
            return found
        time.sleep(_LOOK_EVERY_S)


def _sent(
    workload: Workload,
    answers: Sequence[StreamedCompletion],
    start_s: float,
    late_s: float,
    timelines: dict[int, Timeline],
) -> SentLoad:
    limits = {each.name: each for each in workload.classes}
    records = []
    for asked, answer in zip(workload.requests, answers, strict=True):
        if answer.error:
            continue
        record = ServedRecord(
            arrival_s=answer.sent_s,
            queued_s=0.0,
            commits_s=answer.chunks_s,
            num_tokens=answer.num_tokens,
            num_rounds=max(1, answer.num_rounds - 1),
        )
        records.append(record.judged(limits[asked.class_name]))
    failed = Counter(answer.error for answer in answers if answer.error and answer.status != _TOO_MANY)
    if not records:
        why = failed.most_common(1)[0][0] if failed else "every one was refused"
        raise ValueError(f"no request ended well: {why}")
    refused = sum(answer.status == _TOO_MANY for answer in answers)
    return SentLoad(
        metrics=load_metrics(records, refused=refused),
        records=tuple(records),
        answers=tuple(answers),
        start_s=start_s,
        failures=dict(failed),
        late_s=late_s,
        timelines=tuple(timelines.values()),
        prompt_tokens=tuple(workload.requests[number].prompt_tokens for number in timelines),
    )
