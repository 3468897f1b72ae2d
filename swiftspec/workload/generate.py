"""Generation of workloads from distributions."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths
from swiftspec.artifacts.workload import MOST_REQUESTS, RequestClass, Workload, WorkloadRequest
from swiftspec.files.document import Origin
from swiftspec.workload.arrivals import arrival_times
from swiftspec.workload.classes import DEFAULT_CLASSES, assign_classes
from swiftspec.workload.lengths import draw_lengths
from swiftspec.workload.prefixes import Prefixes
from swiftspec.workload.prompts import PromptLengths

__all__ = ["make_workload", "random_streams", "with_arrivals"]


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


class _Drawn(NamedTuple):
    """Lengths of all requests, the distributions behind them, and the prompts if the requests name any."""

    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    prompt_ids: Sequence[str | None]
    laws: tuple[Lengths, Lengths]


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

    Parameters
    ----------
    arrivals : Arrivals
        Of requests; of conversations, if prompts are their turns.
    num_requests : int, optional
        Turns count each. As many as the arrivals' stages have if not given.
    prompt_tokens, output_tokens : Lengths, optional
        Distributions of lengths.
    prompts : PromptLengths, optional
        Instead of `prompt_tokens`: each request names one of these prompts, drawn with replacement. Without
        `output_tokens` it also has the length of that prompt's output.
    prefixes : Prefixes, optional
        What prompts share, in addition to their own tokens. Not for `prompts`.
    classes : sequence of RequestClass
    seed : int
        0 or more.

    Raises
    ------
    ValueError
        Naming the argument and its value.

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
    starts_s = arrival_times(arrivals, shared.num_conversations(num_requests), streams.arrivals)
    times = starts_s.repeat(shared.turns)[:num_requests].tolist()
    if prompts is None:
        drawn = _from_distributions(prompt_tokens, output_tokens, num_requests, streams)
    else:
        drawn = _from_prompts(prompts, prompt_tokens, output_tokens, num_requests, streams)
    names = assign_classes(classes, num_requests, streams.classes)
    columns = zip(times, drawn.prompt_tokens, drawn.output_tokens, names, drawn.prompt_ids, strict=True)
    requests = [
        WorkloadRequest(
            arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output, class_name=name, prompt_id=prompt_id
        )
        for arrival_s, prompt, output, name, prompt_id in columns
    ]
    return Workload(
        origin=Origin.here(),
        arrivals=arrivals,
        prompt_tokens=drawn.laws[0],
        output_tokens=drawn.laws[1],
        seed=seed,
        classes=tuple(classes),
        requests=tuple(shared.applied(requests)),
        prompts=None if prompts is None else prompts.source,
    )


def with_arrivals(
    workload: Workload, arrivals: Arrivals, *, seed: int | None = None, num_requests: int | None = None
) -> Workload:
    """The same requests with other arrivals.

    Parameters
    ----------
    workload : Workload
    arrivals : Arrivals
        Not of a replay.
    seed : int, optional
        Of the arrivals; the workload's own if not given.
    num_requests : int, optional
        Take the first ones only.

    Raises
    ------
    ValueError
        If a value is out of range.
    """
    requests = workload.requests[:num_requests]
    streams = random_streams(workload.seed if seed is None else seed)
    starts = np.cumsum([each.think_time_s is None for each in requests])  # turns arrive with their conversation
    times = arrival_times(arrivals, int(starts[-1]), streams.arrivals)[starts - 1].tolist()
    moved = [each.model_copy(update={"arrival_s": time_s}) for each, time_s in zip(requests, times, strict=True)]
    changes = {"arrivals": arrivals, "requests": tuple(moved), "trace": None}
    return Workload(**{name: getattr(workload, name) for name in Workload.model_fields} | changes)


def _num_requests(arrivals: Arrivals, asked: int | None, shared: Prefixes) -> int:
    staged = arrivals.num_requests
    if staged is not None and asked is not None:
        raise ValueError(f"num_requests is {asked}, but the stages {arrivals} set the number")
    number = asked if staged is None else staged * shared.turns
    if number is None:
        raise ValueError(f"num_requests is missing; {arrivals} has no end")
    if not 1 <= number <= MOST_REQUESTS:
        raise ValueError(f"num_requests is {number}; expected 1 to {MOST_REQUESTS}")
    return number


def _from_distributions(
    prompt_tokens: Lengths | None, output_tokens: Lengths | None, num_requests: int, streams: _Streams
) -> _Drawn:
    if prompt_tokens is None or output_tokens is None:
        missing = "prompt_tokens" if prompt_tokens is None else "output_tokens"
        raise ValueError(f"{missing} is missing; expected {Lengths.syntax}")
    return _Drawn(
        prompt_tokens=draw_lengths(prompt_tokens, num_requests, streams.prompts, field="prompt_tokens").tolist(),
        output_tokens=draw_lengths(output_tokens, num_requests, streams.outputs, field="output_tokens").tolist(),
        prompt_ids=[None] * num_requests,
        laws=(prompt_tokens, output_tokens),
    )


def _from_prompts(
    prompts: PromptLengths,
    prompt_tokens: Lengths | None,
    output_tokens: Lengths | None,
    num_requests: int,
    streams: _Streams,
) -> _Drawn:
    if prompt_tokens is not None:
        raise ValueError(f"prompt_tokens is {prompt_tokens}, but the lengths are those of {prompts.source.file}")
    chosen = streams.prompts.integers(len(prompts.ids), size=num_requests).tolist()
    if output_tokens is not None:
        outputs = draw_lengths(output_tokens, num_requests, streams.outputs, field="output_tokens").tolist()
    elif prompts.output_tokens is not None:
        outputs = [prompts.output_tokens[number] for number in chosen]
    else:
        raise ValueError(f"output_tokens is missing; {prompts.source.file} has prompts only")
    of_prompts = Lengths(distribution=Distribution.PROMPTS)
    return _Drawn(
        prompt_tokens=[prompts.prompt_tokens[number] for number in chosen],
        output_tokens=outputs,
        prompt_ids=[prompts.ids[number] for number in chosen],
        laws=(of_prompts, output_tokens or of_prompts),
    )
