"""Generation of workloads from distributions, and which request is of which class."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.distributions import MOST_TOKENS, Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.workload import MOST_REQUESTS, RequestClass, Workload, WorkloadRequest
from swiftspec.errors import FieldError
from swiftspec.files.document import Origin
from swiftspec.files.reading import shown
from swiftspec.workload.prompts import Prefixes, PromptLengths

DEFAULT_CLASSES = (RequestClass(name="default"),)
_ROUNDING = 1e-9
_Times = npt.NDArray[np.float64]
_LEAST_GAP = float(np.finfo(float).tiny)  # gaps of a small shape are so short that all of them may round to 0
_Tokens = npt.NDArray[np.int64]
_Lengths = tuple[int, int, str | None]  # of a request: tokens of its prompt and output, and the prompt that it names


def check_classes(classes: Sequence[RequestClass]) -> None:
    """ValueError if there is none, or if two have one name."""
    if not classes:
        raise ValueError("classes is empty; expected at least one")
    name, count = Counter(each.name for each in classes).most_common(1)[0]
    if count > 1:
        raise ValueError(f"classes has {shown(name)} {count} times; expected every name once")


def shares_of(classes: Sequence[RequestClass]) -> tuple[float, ...]:
    """Share of the requests that each class gets: its own, or an equal part of what the others leave.

    ValueError: if the shares do not add up to 1, or leave nothing for a class.
    """
    check_classes(classes)
    given = sum(each.share or 0.0 for each in classes)
    sharing = [each.name for each in classes if each.share is None]
    if given > 1 + _ROUNDING:
        raise ValueError(f"shares of classes add up to {given:g}; expected at most 1")
    if not sharing and given < 1 - _ROUNDING:
        raise ValueError(f"shares of classes add up to {given:g}; expected 1, or a class without a share")
    if sharing and given > 1 - _ROUNDING:
        raise ValueError(f"shares of classes add up to {given:g}, which leaves nothing for {sharing[0]}")
    return tuple((1 - given) / len(sharing) if each.share is None else each.share for each in classes)


def assign_classes(classes: Sequence[RequestClass], num_requests: int, rng: np.random.Generator) -> list[str]:
    """Names of classes, one for each request, in random order and in numbers as near to the shares as can be."""
    wanted = np.array(shares_of(classes)) * num_requests
    counts = np.floor(wanted).astype(int)
    largest_rests = np.argsort(counts - wanted, kind="stable")[: num_requests - int(counts.sum())]
    counts[largest_rests] += 1
    numbers = np.repeat(np.arange(len(classes)), counts)
    return [classes[number].name for number in rng.permutation(numbers).tolist()]


def draw_lengths(lengths: Lengths, num_requests: int, rng: np.random.Generator, *, field: str) -> _Tokens:
    """Numbers of tokens, at least 1 each.

    field: what the lengths are of, for errors: `prompt_tokens`.

    ValueError: if the lengths are those of a file.
    """
    match lengths.distribution:
        case Distribution.FIXED:
            assert lengths.tokens is not None
            return np.full(num_requests, lengths.tokens, np.int64)
        case Distribution.UNIFORM:
            assert lengths.least is not None
            assert lengths.most is not None
            return rng.integers(lengths.least, lengths.most, num_requests, endpoint=True)
        case Distribution.LOGNORMAL:
            assert lengths.mean is not None
            assert lengths.cv is not None
            variance = math.log1p(lengths.cv**2)  # of the logarithm
            drawn = rng.lognormal(math.log(lengths.mean) - variance / 2, math.sqrt(variance), num_requests)
            return np.clip(np.rint(drawn), 1, MOST_TOKENS).astype(np.int64)
        case other:
            raise FieldError(field, other, f"expected {Lengths.syntax}")


def arrival_times(arrivals: Arrivals, num_requests: int, rng: np.random.Generator) -> _Times:
    """Seconds from 0 to each arrival, ascending; all 0 in a closed loop, where the ends of requests release others.

    The gaps, that before the first request included, are stretched until they add up to `num_requests` / rate, as
    `vllm bench serve` does: the mean rate is then exact with any seed. A seed has the same pattern at every rate.

    ValueError: if the process is a replay, which has no distribution, or its stages have fewer requests.
    """
    if arrivals.process is Process.CLOSED:
        return np.zeros(num_requests)
    if arrivals.stages:
        return _staged(arrivals, num_requests, rng)
    times = np.cumsum(np.maximum(_gaps(arrivals, num_requests, rng), _LEAST_GAP))
    assert arrivals.rate is not None  # as every open process has one
    scaled: _Times = times / times[-1] * (num_requests / arrivals.rate)
    return scaled


def _staged(arrivals: Arrivals, num_requests: int, rng: np.random.Generator) -> _Times:
    """Arrivals of one stage after another, each with exactly its rate."""
    most = arrivals.num_requests
    assert most is not None, "there are stages"
    if num_requests > most:
        raise FieldError("num_requests", num_requests, f"the stages {arrivals} have {most}")
    start_s, found = 0.0, []
    for stage in arrivals.stages:
        if stage.num_requests:
            alone = arrivals.model_copy(update={"rate": stage.rate, "stages": ()})
            found.append(start_s + arrival_times(alone, stage.num_requests, rng))
        start_s += stage.seconds
    return np.concatenate(found)[:num_requests]


def _gaps(arrivals: Arrivals, num_requests: int, rng: np.random.Generator) -> _Times:
    """Gaps before requests, in any unit."""
    match arrivals.process:
        case Process.CONSTANT:
            return np.ones(num_requests)
        case Process.POISSON:
            return rng.standard_exponential(num_requests)
        case Process.GAMMA:
            assert arrivals.shape is not None
            return rng.standard_gamma(arrivals.shape, num_requests)
        case other:
            raise FieldError("arrivals", other, f"expected {Arrivals.syntax}")


class _Streams(NamedTuple):
    """A stream of random numbers for each quantity: another choice of one leaves the others as they are."""

    arrivals: np.random.Generator
    prompts: np.random.Generator
    outputs: np.random.Generator
    classes: np.random.Generator


def random_streams(seed: int) -> _Streams:
    """Streams of a seed. ValueError if it is negative."""
    if seed < 0:
        raise ValueError(f"seed is {seed}; expected 0 or more")
    return _Streams(*np.random.default_rng(seed).spawn(len(_Streams._fields)))


def make_workload(
    arrivals: Arrivals,
    *,
    num_requests: int | None = None,
    prompt_tokens: Lengths | None = None,
    output_tokens: Lengths | None = None,
    prompts: PromptLengths | None = None,
    prefixes: Prefixes | None = None,
    classes: Sequence[RequestClass] = DEFAULT_CLASSES,
    seed: int = 0,
) -> Workload:
    """Workload drawn from distributions. The same arguments give the same requests.

    arrivals: of requests; of conversations, if prompts are their turns.
    num_requests: turns count each. As many as the arrivals' stages have if not given.
    prompt_tokens, output_tokens: distributions of lengths.
    prompts: instead of `prompt_tokens`: each request names one of these prompts, drawn with replacement. Without
        `output_tokens` it also has the length of that prompt's output.
    prefixes: what prompts share, in addition to their own tokens. Not for `prompts`.
    seed: 0 or more.

    ValueError: naming the argument and its value.

    Examples
    --------
    >>> from swiftspec.artifacts.distributions import Arrivals, Lengths
    >>> made = make_workload(
    ...     Arrivals(process="poisson", rate=2.0),
    ...     num_requests=500,
    ...     prompt_tokens=Lengths(distribution="lognormal", mean=200, cv=0.5),
    ...     output_tokens=Lengths(distribution="fixed", tokens=96),
    ... )
    >>> made.duration_s, made.rate
    (250.0, 2.0)
    """
    shared = prefixes or Prefixes()
    if prompts is not None and shared != Prefixes():
        raise ValueError(f"prefixes is {shared}, but prompts are those of {prompts.source.file}")
    num_requests = _num_requests(arrivals, num_requests, shared)
    streams = random_streams(seed)
    num_conversations = -(-num_requests // shared.turns)  # the last of which may be cut short
    starts_s = arrival_times(arrivals, num_conversations, streams.arrivals)
    times = starts_s.repeat(shared.turns)[:num_requests].tolist()
    if prompts is None:
        drawn = _from_distributions(prompt_tokens, output_tokens, num_requests, streams)
    else:
        drawn = _from_prompts(prompts, prompt_tokens, output_tokens, num_requests, streams)
    names = assign_classes(classes, num_requests, streams.classes)
    requests = [
        WorkloadRequest(
            arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, class_name=name, prompt_id=prompt_id
        )
        for arrival_s, (prompt, output, prompt_id), name in zip(times, drawn, names, strict=True)
    ]
    of_prompts = Lengths(distribution=Distribution.PROMPTS)
    return Workload(
        origin=Origin.here(),
        arrivals=arrivals,
        prompt_tokens=prompt_tokens or of_prompts,
        output_tokens=output_tokens or of_prompts,
        seed=seed,
        classes=tuple(classes),
        requests=tuple(shared.applied(requests)),
        prompts=None if prompts is None else prompts.source,
    )


def with_arrivals(
    workload: Workload, arrivals: Arrivals, *, seed: int | None = None, num_requests: int | None = None
) -> Workload:
    """The same requests with other arrivals.

    arrivals: not of a replay. seed: of the arrivals; the workload's own if not given. num_requests: take the first ones
    only.

    ValueError: if a value is out of range.
    """
    requests = workload.requests[:num_requests]
    streams = random_streams(workload.seed if seed is None else seed)
    starts = np.cumsum([each.think_time_s is None for each in requests])  # turns arrive with their conversation
    times = arrival_times(arrivals, int(starts[-1]), streams.arrivals)[starts - 1].tolist()
    moved = [each.model_copy(update={"arrival_s": time_s}) for each, time_s in zip(requests, times, strict=True)]
    return workload.replaced(arrivals=arrivals, requests=tuple(moved), trace=None)


def _num_requests(arrivals: Arrivals, asked: int | None, shared: Prefixes) -> int:
    staged = arrivals.num_requests
    if staged is not None and asked is not None:
        raise FieldError("num_requests", f"{asked}, but the stages {arrivals} set the number")
    number = asked if staged is None else staged * shared.turns
    if number is None:
        raise FieldError("num_requests", "missing", f"{arrivals} has no end")
    if not 1 <= number <= MOST_REQUESTS:
        raise FieldError("num_requests", number, f"expected 1 to {MOST_REQUESTS}")
    return number


def _from_distributions(
    prompt_tokens: Lengths | None, output_tokens: Lengths | None, num_requests: int, streams: _Streams
) -> list[_Lengths]:
    if prompt_tokens is None or output_tokens is None:
        missing = "prompt_tokens" if prompt_tokens is None else "output_tokens"
        raise FieldError(missing, "missing", f"expected {Lengths.syntax}")
    prompts = draw_lengths(prompt_tokens, num_requests, streams.prompts, field="prompt_tokens").tolist()
    outputs = draw_lengths(output_tokens, num_requests, streams.outputs, field="output_tokens").tolist()
    return [(prompt, output, None) for prompt, output in zip(prompts, outputs, strict=True)]


def _from_prompts(
    prompts: PromptLengths,
    prompt_tokens: Lengths | None,
    output_tokens: Lengths | None,
    num_requests: int,
    streams: _Streams,
) -> list[_Lengths]:
    if prompt_tokens is not None:
        raise FieldError("prompt_tokens", f"{prompt_tokens}, but the lengths are those of {prompts.source.file}")
    chosen = streams.prompts.integers(len(prompts.ids), size=num_requests).tolist()
    if output_tokens is not None:
        outputs = draw_lengths(output_tokens, num_requests, streams.outputs, field="output_tokens").tolist()
    elif prompts.output_tokens is not None:
        outputs = [prompts.output_tokens[number] for number in chosen]
    else:
        raise FieldError("output_tokens", "missing", f"{prompts.source.file} has prompts only")
    return [
        (prompts.prompt_tokens[number], output, prompts.ids[number])
        for number, output in zip(chosen, outputs, strict=True)
    ]
