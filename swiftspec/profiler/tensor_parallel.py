"""Forwards of several ranks, composed of a shard's computation and the collectives between ranks."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product

from swiftspec.artifacts.profile import Collective, StepPoint
from swiftspec.files.document import ModelRef
from swiftspec.models.inflation import inflated_spec
from swiftspec.models.layer_parts import halves
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role
from swiftspec.profiler.benches import Bench
from swiftspec.profiler.collective_costs import CollectiveCosts, Samples, collective_samples
from swiftspec.timing.latency import Latency, Part, Provenance, weakest
from swiftspec.timing.steps import PREFILL_CHUNK, prefill_rows
from swiftspec.timing.timeline import Phase

USUAL_ROWS = 8  # of a verification or expansion, at which all-reduces are compared
GLOO = "gloo"


class CollectiveSamples:
    """Collective costs of divided groups, by role and degree."""

    def __init__(self, models: Mapping[Role, ModelRef]) -> None:
        self._models = models
        self._specs = {role: inflated_spec(reference) for role, reference in models.items()}
        self._samples: dict[tuple[Role, int, int], list[Mapping[int, Samples]]] = defaultdict(list)

    def measure(self, bench: Bench) -> None:
        """Measure every divided group of a bench, for every model that runs there."""
        for holder, ranks in bench.ranks.items():
            devices = bench.groups[holder]
            for role in [holder] if bench.layout is Layout.DISAGGREGATED else Role:
                dtype = self._models[role].dtype
                samples = collective_samples(self._specs[role], dtype, devices=devices, ranks=ranks)
                self._samples[role, len(devices), ranks].append(samples)

    def composed(self, shards: Sequence[StepPoint]) -> Iterator[StepPoint]:
        """Whole forwards composed from shards."""
        for (role, degree, ranks), costs in self._costs.items():
            of_tp_group = (step for step in shards if (step.role, step.degree, step.ranks) == (role, degree, ranks))
            yield from composed_steps(of_tp_group, costs, self._specs[role])

    def collectives(self) -> tuple[Collective, ...]:
        """All-reduce costs, for the profile."""
        return tuple(collective_of(*key, costs) for key, costs in self._costs.items())

    @property
    def _costs(self) -> dict[tuple[Role, int, int], CollectiveCosts]:
        return {key: CollectiveCosts.of(samples) for key, samples in self._samples.items()}


def composed_steps(shards: Iterable[StepPoint], costs: CollectiveCosts, spec: ModelSpec) -> Iterator[StepPoint]:
    """Whole forwards of a role's model, from those of shards that ran without collectives.

    A forward is a sum of independent parts: its distribution has all their combinations. Only the shard's part is
    `measured`; the collectives are a multiple of one that was measured between other products.
    """
    for shard in shards:
        latencies = {
            "shard": shard.latency,
            "all_reduce": _all_reduces(shard, costs, spec),
            "gather": costs.gather.at(1 if shard.phase is Phase.PREFILL else shard.rows),
            "note": costs.note.at(shard.rows),
        }
        total = reduce(_sum, latencies.values())
        # The mean of twenty quantiles of a sum differs slightly from the mean of the sum.
        scale = total.mean_s / sum(latency.mean_s for latency in latencies.values())
        parts = tuple(
            Part(
                name=name,
                seconds=latency.mean_s * scale,
                provenance=Provenance.MEASURED if name == "shard" else Provenance.COMPOSED,
            )
            for name, latency in latencies.items()
        )
        provenance = weakest(part.provenance for part in parts)
        yield shard.model_copy(update={"quantiles_s": total.quantiles_s, "provenance": provenance, "parts": parts})


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
    """Cost of an all-reduce between computing ranks."""
    seconds = {GLOO: costs.all_reduce.at(USUAL_ROWS).mean_s}
    return Collective(role=role, degree=degree, ranks=ranks, implementation=GLOO, seconds=seconds)
