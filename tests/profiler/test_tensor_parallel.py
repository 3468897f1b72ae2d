import pytest

from swiftspec.artifacts.profile import StepPoint
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies.effects import Role
from swiftspec.profiler.collective_costs import CollectiveCosts, Samples
from swiftspec.profiler.tensor_parallel import GLOO, collective_of, composed_steps
from swiftspec.timing.latency import Provenance
from swiftspec.timing.steps import PREFILL_CHUNK
from swiftspec.timing.timeline import Phase
from tests.builders import step_point

SPEC = ModelSpec.from_directory(model_directory("demo/target"))
# An all-reduce costs 2 ms and 1 ms for every row, a gather 5 ms, a note 7 ms.
COSTS = CollectiveCosts.of(
    [{rows: Samples(sums=[2e-3 + rows * 1e-3] * 4, gathers=[5e-3] * 4, notes=[7e-3] * 4) for rows in (1, 8, 128)}]
)


def composed(phase: Phase, *, rows: int, shard_s: float = 0.1) -> StepPoint:
    shard = step_point(Role.TARGET, phase, [shard_s], degree=2, rows=rows)
    (whole,) = composed_steps([shard.model_copy(update={"ranks": 2})], COSTS, SPEC)
    return whole


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_a_forward_is_its_shard_two_all_reduces_a_layer_a_gather_and_a_note(rows: int) -> None:
    step = composed(Phase.VERIFY, rows=rows)
    all_reduces_s = 2 * SPEC.num_layers * (2e-3 + rows * 1e-3)
    assert {part.name: part.seconds for part in step.parts} == pytest.approx(
        {"shard": 0.1, "all_reduce": all_reduces_s, "gather": 5e-3, "note": 7e-3}
    )
    assert step.quantiles_s == pytest.approx([0.1 + all_reduces_s + 12e-3] * 20)


def test_only_what_was_timed_within_the_forward_is_called_measured() -> None:
    step = composed(Phase.VERIFY, rows=8)
    assert step.provenance is Provenance.COMPOSED
    assert {part.name for part in step.parts if part.provenance is Provenance.MEASURED} == {"shard"}


def test_both_halves_of_a_forward_have_its_all_reduces_and_a_gather_each() -> None:
    whole, first, second = (composed(phase, rows=8) for phase in (Phase.VERIFY, Phase.EXIT, Phase.FINISH))

    def seconds(step: StepPoint, name: str) -> float:
        return sum(part.seconds for part in step.parts if part.name == name)

    assert seconds(first, "all_reduce") + seconds(second, "all_reduce") == pytest.approx(seconds(whole, "all_reduce"))
    assert seconds(first, "gather") == seconds(second, "gather") == pytest.approx(5e-3)


def test_a_prompt_is_summed_chunk_by_chunk_and_gathered_once() -> None:
    step = composed(Phase.PREFILL, rows=2 * PREFILL_CHUNK + 8)
    sums_s = 2 * (2e-3 + PREFILL_CHUNK * 1e-3) + 2e-3 + 8e-3
    parts = {part.name: part.seconds for part in step.parts}
    assert parts["all_reduce"] == pytest.approx(2 * SPEC.num_layers * sums_s)
    assert parts["gather"] == pytest.approx(5e-3)


def test_a_prompts_last_chunk_is_summed_with_its_padding() -> None:
    assert composed(Phase.PREFILL, rows=PREFILL_CHUNK + 65).quantiles_s[0] == pytest.approx(
        composed(Phase.PREFILL, rows=PREFILL_CHUNK + 80).quantiles_s[0]
    )


def test_slow_collectives_widen_the_distribution_and_its_mean_is_that_of_its_parts() -> None:
    uneven = {8: Samples(sums=[1e-3] * 9 + [1e-2], gathers=[1e-3], notes=[1e-3])}
    shard = step_point(Role.TARGET, Phase.VERIFY, [0.1, 0.2], degree=2, rows=8)
    (whole,) = composed_steps([shard], CollectiveCosts.of([uneven]), SPEC)
    assert whole.latency.median_s < whole.latency.mean_s
    assert whole.quantiles_s[-1] > 0.2 + 2 * SPEC.num_layers * 2e-3
    assert sum(part.seconds for part in whole.parts) == pytest.approx(whole.latency.mean_s)


def test_samples_of_several_processes_count_alike() -> None:
    one, other = ({1: Samples([s], [s], [s])} for s in (1e-3, 3e-3))
    costs = CollectiveCosts.of([one, other])
    assert costs.all_reduce.at(1).mean_s == pytest.approx(2e-3)
    assert costs.note.at(1).mean_s == pytest.approx(2e-3)


def test_the_usual_all_reduce_among_computing_ranks_is_told() -> None:
    collective = collective_of(Role.DRAFT, 4, 2, COSTS)
    assert (collective.role, collective.degree, collective.ranks) == (Role.DRAFT, 4, 2)
    assert collective.seconds == pytest.approx({GLOO: 10e-3})
