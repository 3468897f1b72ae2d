"""Controls under load, against every fixed draft length and against no speculation.

On a quiet machine. Closed loops of 1 to 8 clients are served by a chain, whose draft length the control decides. The
machine's speed changes by more than controls differ, so they take turns of a second on one engine, and tokens/s are
those of each one's seconds. The best of several noisy figures is too high by chance, so the best fixed length is chosen
in every other round of turns and measured in those between, and the other way round. At the last load, `goodput` and
autoregressive decoding then serve whole loads in turn, a fifth as long, each on an engine of its own. Last, Poisson
arrivals of three classes with limits on the time per token are served by autoregressive decoding and under controls.
Criteria:

- `goodput` at least 97 % of the best fixed length at every load, and 99 % of no speculation at the last one;
- `slo`: at least 1.3 times the attainment of autoregressive decoding, where that attains at most 60 %.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Literal, get_args

import numpy as np

from swiftspec.api.inputs import read_texts
from swiftspec.api.planning import simulate_load
from swiftspec.artifacts.candidate import candidate_costs
from swiftspec.artifacts.load_metrics import LoadMetrics, MeasuredLoad
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.scheduler.controls.control import Control
from swiftspec.scheduler.controls.named import named_control
from swiftspec.validation.load import engine_for_load, load_requests
from swiftspec.workload import RequestClass
from swiftspec.workload.generate import DEFAULT_CLASSES
from tools.checks.criterion import Criterion, at_least
from tools.checks.turns import TURN_S, Turns, turn_at
from tools.checks.workloads import candidate_of, drawn

Part = Literal["goodput", "saturation", "slo"]

_PLAIN = "no speculation"
_FIXED = tuple(f"fixed:{length}" for length in (0, 1, 2, 3, 4, 6))
_LEARNING = ("goodput", "goodput-per-request", "worth")
_LONGEST = 6
_SETTLING_S = 0.15  # the first moments of a turn are the last control's
_SHARING = 0.35  # tokens/s of N clients are about N to this power times those of one
_OF_BEST, _OF_PLAIN = 0.97, 0.99
_PARTS = 5  # into which a load is divided
_MOST_PLAIN, _TIMES_PLAIN = 0.6, 1.3


def check(
    plan: Path,
    prompts: Path,
    clients: Annotated[tuple[int, ...], "loads, ascending"] = (1, 2, 4, 6, 8),
    requests: Annotated[int, "of each load"] = 2000,
    repeats: Annotated[int, "turns, of whole loads"] = 3,
    only: tuple[Part, ...] = get_args(Part),
    simulate: Annotated[bool, "simulate instead of measuring"] = False,
) -> Iterator[Criterion]:
    """Serve every load under every control."""
    bench = _Bench.of(plan, prompts, num_turns=repeats, is_simulated=simulate)
    if "goodput" in only:
        yield from _goodput(bench, clients, requests)
    if "saturation" in only:
        yield _saturation(bench, clients[-1], requests)
    if "slo" in only:
        yield from _slo(bench, requests)


@dataclass(frozen=True)
class _Bench:
    """A plan whose chain drafts up to `_LONGEST` tokens, and how its loads are served."""

    planned: Planned
    prompts: Path
    num_turns: int
    is_simulated: bool

    @classmethod
    def of(cls, path: Path, prompts: Path, *, num_turns: int, is_simulated: bool) -> _Bench:
        planned = Planned.load(path)
        plan, profile, trace = planned.plan, planned.profile, planned.trace
        chain = candidate_of(plan, SerialChain.name).model_copy(update={"shape": {"num_draft_tokens": _LONGEST}})
        chain = chain.model_copy(update={"costs": candidate_costs(chain, profile.latencies, trace)})
        others = tuple(each for each in plan.candidates.values() if each.policy != chain.policy)
        changed = plan.model_copy(update={"chosen": chain, "alternatives": others})
        return cls(replace(planned, plan=changed), prompts, 1 if is_simulated else num_turns, is_simulated)

    def serve(self, workload: Workload, control: str) -> LoadMetrics:
        """Metrics of a workload under a control."""
        is_plain = control == _PLAIN
        policy = Autoregressive.name if is_plain else SerialChain.name
        if self.is_simulated:
            options = LoadOptions(control=None if is_plain else control)
            return simulate_load(self.planned, workload, policy=policy, options=options).metrics
        return self.measured(workload, policy, None if is_plain else named_control(control)).metrics

    def measured(self, workload: Workload, policy: str, control: Control | None) -> MeasuredLoad:
        """A workload as it ran on an engine of its own."""
        plan = self.planned.plan
        candidate, options = plan.candidates[policy], LoadOptions().on(self.planned.profile.device)
        requests = load_requests(plan, workload, read_texts(self.prompts, None), seed=0)
        with engine_for_load(
            plan,
            candidate,
            workload,
            requests,
            options=options,
            control=control,
            progress=lambda *_: None,
        ) as engine:
            return engine.serve(workload, requests)


def _goodput(bench: _Bench, clients: Sequence[int], num_requests: int) -> Iterator[Criterion]:
    shown = []
    for number in clients:
        load = _load(f"closed:{number}", round(num_requests * number**_SHARING))
        found = _simulated(bench, load) if bench.is_simulated else _in_turns(bench, load)
        over_best = {name: found.over_best(name) for name in (*_FIXED, *_LEARNING)}
        shown.append((str(number), *(f"{ratio:.3f}" for ratio in over_best.values()), " ".join(found.best)))
        yield at_least(f"{number} clients: goodput over the best fixed length", over_best["goodput"], _OF_BEST)
    console.table("Tokens/s over those of the best fixed length", ("clients", *_FIXED, *_LEARNING, "best"), shown)


def _saturation(bench: _Bench, clients: int, num_requests: int) -> Criterion:
    """Whole loads in turn, short ones: a machine's speed changes within minutes."""
    load = _load(f"closed:{clients}", num_requests // _PARTS)
    ratios = []
    for _ in range(1 if bench.is_simulated else _PARTS * bench.num_turns):
        plain = bench.serve(load, _PLAIN).output_throughput
        ratios.append(bench.serve(load, "goodput").output_throughput / plain)
    low, high = np.quantile(ratios, (0.25, 0.75))
    console.say(f"of {len(ratios)} pairs of loads, the middle half have {low:.3f} to {high:.3f}")
    return at_least(f"{clients} clients: goodput over no speculation", median(ratios), _OF_PLAIN)


@dataclass(frozen=True)
class _Speeds:
    """Tokens/s under every control, in the even and in the odd rounds of turns."""

    halves: tuple[Mapping[str, float], Mapping[str, float]]

    @property
    def best(self) -> tuple[str, str]:
        """The best fixed length of each half."""
        even, odd = (max(_FIXED, key=half.__getitem__) for half in self.halves)
        return even, odd

    def over_best(self, name: str) -> float:
        """A control's speed over that of the best fixed length of the other half."""
        chosen = reversed(self.best)
        others = sum(half[best] for half, best in zip(self.halves, chosen, strict=True))
        return sum(half[name] for half in self.halves) / others


def _simulated(bench: _Bench, load: Workload) -> _Speeds:
    found = {name: bench.serve(load, name).output_throughput for name in (*_FIXED, *_LEARNING)}
    return _Speeds((found, found))


def _in_turns(bench: _Bench, load: Workload) -> _Speeds:
    """Speeds measured in turns."""
    names = (*_FIXED, *_LEARNING)
    timelines = bench.measured(load, SerialChain.name, Turns(tuple(map(named_control, names)))).timelines
    commits = [span for timeline in timelines for span in timeline.commits]
    first, last = (turn_at(pick(span.end_s for span in commits)) for pick in (min, max))
    num_rounds = (last - first - 1) // (2 * len(names)) * 2  # as many even as odd ones
    if not num_rounds:
        raise ValueError(f"--requests: the load lasted {last - first} turns; {2 * len(names) + 1} are the fewest")
    tokens = tuple(dict.fromkeys(names, 0.0) for _ in range(2))
    for span in commits:
        turn, since_s = turn_at(span.end_s), span.end_s % TURN_S
        round_number = (turn - first - 1) // len(names)
        if 0 <= round_number < num_rounds and since_s >= _SETTLING_S:
            tokens[round_number % 2][names[turn % len(names)]] += span.tokens
    seconds = num_rounds / 2 * (TURN_S - _SETTLING_S)
    even, odd = ({name: count / seconds for name, count in half.items()} for half in tokens)
    return _Speeds((even, odd))


def _slo(bench: _Bench, num_requests: int) -> Iterator[Criterion]:
    """Three classes as AdaServe's: 60 % with a tight limit, 20 % with a medium one, 20 % with a loose one."""
    alone, saturated = (bench.serve(_load(f"closed:{clients}", num_requests // 20), _PLAIN) for clients in (1, 8))
    tpot_s = alone.tpot_s.mean
    classes = (
        RequestClass(name="tight", tpot_s=1.2 * tpot_s, share=0.6),
        RequestClass(name="medium", tpot_s=2.0 * tpot_s, share=0.2),
        RequestClass(name="loose", tpot_s=6.0 * tpot_s, share=0.2),
    )
    controls = (_PLAIN, "fixed:2", "goodput", "slo")
    shown = []
    for share in (0.3, 0.45, 0.6):
        load = _load(f"poisson:{share * saturated.request_throughput}", num_requests // 20, classes=classes)
        attained = {name: _attained(bench, load, name) for name in controls}
        shown.append((f"{share:.0%}", *(f"{each:.1%}" for each in attained.values())))
        if attained[_PLAIN] <= _MOST_PLAIN:
            times = attained["slo"] / max(attained[_PLAIN], 1e-9)
            yield at_least(f"{share:.0%} of saturation: attainment of slo over no speculation", times, _TIMES_PLAIN)
    console.table("Requests within their limits", ("load", *controls), shown)


def _attained(bench: _Bench, load: Workload, control: str) -> float:
    """Share of the requests within their limits: the median over turns."""
    shares = {each.name: each.share or 0.0 for each in load.classes}
    found = []
    for _ in range(bench.num_turns):
        attainment = bench.serve(load, control).attainment
        found.append(sum(shares[name] * share for name, share in attainment.items()))
    return median(found)


def _load(arrivals: str, num_requests: int, classes: Sequence[RequestClass] = DEFAULT_CLASSES) -> Workload:
    return drawn(arrivals, num_requests, prompt_tokens="uniform:16:96", output_tokens="uniform:32:96", classes=classes)
