"""Check controls under load: `python -m tools.check_controls --plan PLAN --prompts F`.

On a quiet machine. Closed loops of 1 to 8 clients are served by a chain, whose draft length every control decides, and
by autoregressive decoding, `--repeats` times in turn. Each figure is tokens/s over those of autoregressive decoding in
the same turn, the median over turns. Then Poisson arrivals of three classes with limits on the time per token are
served by autoregressive decoding and by the control `slo`. Exit code 1 if a criterion is missed:

- `goodput` at least 97 % of the best fixed length at every load, and 99 % of no speculation at the last one;
- `slo`: at least 1.3 times the attainment of autoregressive decoding, which attains at most 60 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from swiftspec.artifacts.candidate_costs import candidate_costs
from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.load_metrics import LoadMetrics
from swiftspec.artifacts.plan import Candidate
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.workload import Workload
from swiftspec.cli import console
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.serial import SerialChain
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.scheduler.batching import BatchLimits
from swiftspec.stages.inputs import read_texts
from swiftspec.stages.serving import LoadOptions, simulate_load
from swiftspec.validation.load import load_requests, measure_load
from swiftspec.workload import RequestClass, make_workload
from swiftspec.workload.classes import DEFAULT_CLASSES

__all__ = ["main"]

_PLAIN = "no speculation"
_FIXED = tuple(f"fixed:{length}" for length in (0, 1, 2, 3, 4, 6))
_LEARNING = ("goodput", "goodput-per-request", "worth")
_LONGEST = 6
_OF_BEST, _OF_PLAIN = 0.97, 0.99
_MOST_PLAIN, _TIMES_PLAIN = 0.6, 1.3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--clients", default="1,2,4,6,8", help="loads, ascending (default: 1,2,4,6,8)")
    parser.add_argument("--requests", type=int, default=80, help="of each load (default: 80)")
    parser.add_argument("--repeats", type=int, default=3, help="turns (default: 3)")
    parser.add_argument("--only", choices=("goodput", "slo"))
    parser.add_argument("--simulate", action="store_true", help="simulate instead of measuring")
    chosen = parser.parse_args(arguments)
    bench = _Bench.of(chosen)
    held = [
        *(_check_goodput(bench, chosen) if chosen.only != "slo" else ()),
        *(_check_slo(bench, chosen) if chosen.only != "goodput" else ()),
    ]
    return 0 if all(held) else 1


@dataclass(frozen=True)
class _Bench:
    """A plan whose chain drafts up to `_LONGEST` tokens, and how its loads are served."""

    planned: Planned
    prompts: Path
    is_simulated: bool

    @classmethod
    def of(cls, chosen: argparse.Namespace) -> _Bench:
        planned = Planned.load(chosen.plan)
        plan, profile, trace = planned.plan, planned.profile, planned.trace
        chain = plan.candidates[SerialChain.name].model_copy(update={"shape": {"num_draft_tokens": _LONGEST}})
        chain = chain.model_copy(update={"costs": candidate_costs(chain, profile.latencies, trace)})
        others = tuple(each for each in plan.candidates.values() if each.policy != chain.policy)
        changed = plan.model_copy(update={"chosen": chain, "alternatives": others})
        return cls(replace(planned, plan=changed), chosen.prompts, chosen.simulate)

    def serve(self, workload: Workload, control: str) -> LoadMetrics:
        """Metrics of a workload under a control."""
        is_plain = control == _PLAIN
        candidate = self.planned.plan.candidates[Autoregressive.name if is_plain else SerialChain.name]
        options = LoadOptions(control=None if is_plain else control).on(self.planned.profile.device)
        if self.is_simulated:
            return simulate_load(self.planned, workload, policy=candidate.policy, options=options).metrics
        return self._measured(workload, candidate, options)

    def _measured(self, workload: Workload, candidate: Candidate, options: LoadOptions) -> LoadMetrics:
        assert options.prefill_rows is not None
        requests = load_requests(self.planned.plan, workload, read_texts(self.prompts, None), seed=0)
        return measure_load(
            self.planned.plan,
            candidate,
            workload,
            requests,
            source="plan",
            admission=AdmissionLimits(max_running=options.max_running, tree_rows=candidate.build().target_rows),
            batch=BatchLimits(prefill_rows=options.prefill_rows),
            control=options.control,
            progress=lambda *_: None,
        ).metrics


def _check_goodput(bench: _Bench, chosen: argparse.Namespace) -> Iterator[bool]:
    loads = [int(number) for number in chosen.clients.split(",")]
    shown = []
    for clients in loads:
        found = _relative_throughput(
            bench, _load(Arrivals(process=Process.CLOSED, num_clients=clients), chosen), chosen
        )
        best = max(_FIXED, key=found.__getitem__)
        shares = [found[name] / found[best] for name in _LEARNING]
        shown.append((str(clients), *(f"{found[name]:.3f}" for name in (*_FIXED, *_LEARNING)), best))
        yield _said(f"{clients} clients: goodput over the best fixed length, {best}", shares[0], _OF_BEST)
        if clients == loads[-1]:
            yield _said(f"{clients} clients: goodput over no speculation", found["goodput"], _OF_PLAIN)
    console.table("Tokens/s over no speculation", ("clients", *_FIXED, *_LEARNING, "best fixed"), shown)


def _relative_throughput(bench: _Bench, load: Workload, chosen: argparse.Namespace) -> Mapping[str, float]:
    """Tokens/s of every control over those without speculation: the median over turns."""
    names = (*_FIXED, *_LEARNING)
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(1 if bench.is_simulated else chosen.repeats):
        plain = bench.serve(load, _PLAIN).output_throughput
        for name in names[:: 1 if turn % 2 == 0 else -1]:
            ratios[name].append(bench.serve(load, name).output_throughput / plain)
    return {name: median(found) for name, found in ratios.items()}


def _check_slo(bench: _Bench, chosen: argparse.Namespace) -> Iterator[bool]:
    """Three classes as AdaServe's: 60 % with a tight limit, 20 % with a medium one, 20 % with a loose one."""
    alone = bench.serve(_load(Arrivals(process=Process.CLOSED, num_clients=1), chosen), _PLAIN)
    saturated = bench.serve(_load(Arrivals(process=Process.CLOSED, num_clients=8), chosen), _PLAIN)
    tpot_s = alone.tpot_s.mean
    classes = (
        RequestClass(name="tight", tpot_s=1.2 * tpot_s, share=0.6),
        RequestClass(name="medium", tpot_s=2.0 * tpot_s, share=0.2),
        RequestClass(name="loose", tpot_s=6.0 * tpot_s, share=0.2),
    )
    shown = []
    for share in (0.3, 0.45, 0.6):
        arrivals = Arrivals(process=Process.POISSON, rate=share * saturated.request_throughput)
        load = _load(arrivals, chosen, classes=classes)
        attained = {name: _attained(bench, load, name, chosen) for name in (_PLAIN, "fixed:2", "goodput", "slo")}
        shown.append((f"{share:.0%}", *(f"{each:.1%}" for each in attained.values())))
        if attained[_PLAIN] <= _MOST_PLAIN:
            yield _said(
                f"{share:.0%} of saturation: attainment of slo over no speculation",
                attained["slo"] / max(attained[_PLAIN], 1e-9),
                _TIMES_PLAIN,
            )
    console.table("Requests within their limits", ("load", _PLAIN, "fixed:2", "goodput", "slo"), shown)


def _attained(bench: _Bench, load: Workload, control: str, chosen: argparse.Namespace) -> float:
    """Share of the requests within their limits: the median over turns."""
    shares = {each.name: each.share or 0.0 for each in load.classes}
    found = []
    for _ in range(1 if bench.is_simulated else chosen.repeats):
        attainment = bench.serve(load, control).attainment
        found.append(sum(shares[name] * share for name, share in attainment.items()))
    return median(found)


def _load(
    arrivals: Arrivals, chosen: argparse.Namespace, classes: Sequence[RequestClass] = DEFAULT_CLASSES
) -> Workload:
    return make_workload(
        arrivals,
        num_requests=chosen.requests,
        prompt_tokens=Lengths(distribution=Distribution.UNIFORM, least=16, most=96),
        output_tokens=Lengths(distribution=Distribution.UNIFORM, least=32, most=96),
        classes=classes,
    )


def _said(what: str, found: float, least: float) -> bool:
    held = found >= least
    console.say(f"{'held' if held else 'missed'}: {what}: {found:.3f} (limit {least})")
    return held


if __name__ == "__main__":
    sys.exit(main())
