"""Forwards of several ranks, composed of a shard's computation and the collectives between ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

from swiftspec.artifacts.profile import Collective, StepPoint
from swiftspec.models.layers import halves
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import Role
from swiftspec.profiler.collective_costs import CollectiveCosts
from swiftspec.timing.latency import Latency, Part, Provenance, weakest
from swiftspec.timing.steps import PREFILL_CHUNK, prefill_rows
from swiftspec.timing.timeline import Phase

__all__ = ["GLOO", "IN_A_ROW", "collective_of", "composed_steps"]

USUAL_ROWS = 8  # of a verification or expansion, at which all-reduces are compared
GLOO, IN_A_ROW = "gloo", "gloo, in a row"


def composed_steps(shards: Iterable[StepPoint], costs: CollectiveCosts, spec: ModelSpec) -> Iterator[StepPoint]:
    """Whole forwards of a role's model, from those of shards that ran without collectives.

    A forward is a sum of independent parts: its distribution has all their combinations. Only the shard's part is
    `measured`; the collectives are a multiple of one that was measured between other products.
    """
    for shard in shards:
        yield _whole(shard, costs, spec)


def _whole(shard: StepPoint, costs: CollectiveCosts, spec: ModelSpec) -> StepPoint:
    added = {
        "all_reduce": _all_reduces(shard, costs, spec),
        "gather": costs.gather.at(1 if shard.phase is Phase.PREFILL else shard.rows),
        "note": costs.note.at(shard.rows),
    }
    total = shard.latency
    for latency in added.values():
        total = _sum(total, latency)
    means_s = {"shard": shard.latency.mean_s} | {name: latency.mean_s for name, latency in added.items()}
    # The mean of twenty quantiles of a sum differs slightly from the mean of the sum.
    scale = total.mean_s / sum(means_s.values())
    parts = tuple(
        Part(
            name=name,
            seconds=mean_s * scale,
            provenance=Provenance.MEASURED if name == "shard" else Provenance.COMPOSED,
        )
        for name, mean_s in means_s.items()
    )
    provenance = weakest(part.provenance for part in parts)
    return shard.model_copy(update={"quantiles_s": total.quantiles_s, "provenance": provenance, "parts": parts})


def _all_reduces(shard: StepPoint, costs: CollectiveCosts, spec: ModelSpec) -> Latency:
    """All all-reduces of a forward: two per layer, for every chunk of a prompt."""
    everything = range(spec.num_layers)
    layers = len(dict(zip((Phase.EXIT, Phase.FINISH), halves(everything), strict=True)).get(shard.phase, everything))
    is_prompt = shard.phase is Phase.PREFILL
    num_rows, chunk = (prefill_rows(shard.rows), PREFILL_CHUNK) if is_prompt else (shard.rows, shard.rows)
    whole_chunks, rest = divmod(num_rows, chunk)
    total = Latency((0.0,), Provenance.COMPOSED)
    for rows, count in ((chunk, whole_chunks), (rest, 1)):
        if rows and count:
            one = costs.all_reduce.at(rows)
            # A sample is the mean over a forward, so the sum over a forward has the same relative spread.
            several = tuple(2 * layers * count * seconds for seconds in one.quantiles_s)
            total = _sum(total, Latency(several, Provenance.COMPOSED))
    return total


def _sum(one: Latency, other: Latency) -> Latency:
    """Sum of independent latencies."""
    sums = (left + right for left, right in product(one.quantiles_s, other.quantiles_s))
    return Latency.of_samples(sums, Provenance.COMPOSED)


def collective_of(role: Role, degree: int, ranks: int, costs: CollectiveCosts) -> Collective:
    """Cost of an all-reduce between computing ranks, and of one of many in a row."""
    rows = min(costs.in_a_row_s, key=lambda count: abs(count - USUAL_ROWS))
    seconds = {GLOO: costs.all_reduce.at(rows).mean_s, IN_A_ROW: costs.in_a_row_s[rows]}
    return Collective(role=role, degree=degree, ranks=ranks, implementation=GLOO, seconds=seconds)
