from collections.abc import Sequence

import numpy as np
import pytest

from swiftspec.artifacts.plan import Acceptance
from swiftspec.planner.search.decision import NO_ERRORS, PUBLISHED_ACCEPTANCE, KnownErrors, Resampling, known_errors
from swiftspec.planner.search.evaluation import Budget, Evaluator, Outcome
from swiftspec.planner.search.option import Option
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Role
from swiftspec.simulator.forward_errors import EXACT, PASS, ForwardErrors, forward_errors
from swiftspec.timing.latency import Provenance
from tests.builders import machine_profile
from tests.planner.pairs import composed_profile
from tools.iid_trace import synthesise_trace

TRACE = synthesise_trace((0.75, 0.1, 0.05), prompt_lengths=(40,) * 8, num_tokens=64, seed=1)
PROFILE = composed_profile(num_devices=4, context=1024)
EFFORT = Budget(prompt_indices=tuple(range(8)), max_new_tokens=64, seeds=(0,), explain=True)
ERRORS = ForwardErrors(of_role=dict.fromkeys(Role, 0.04))
APART = Option.placed(make_policy("swiftspec", verify_rows=16), (3, 1))
ALONE = Option.placed(make_policy("autoregressive"), (4,))


def simulated(option: Option, *, errors: ForwardErrors, target: float = 1.0) -> Outcome:
    """Outcome of an option with the target's forwards longer by a factor."""
    scale = {Role.TARGET: target, Role.DRAFT: 1.0}
    latencies = PROFILE.latencies.changed(lambda table, grid: grid.scaled(scale[table.role]))
    evaluator = Evaluator(latencies, TRACE, num_jobs=1, errors=errors)
    return evaluator.run([option], EFFORT)[0]


def steepest(targets: Sequence[float], errors: ForwardErrors) -> float:
    """The largest step of tokens/s from one of these lengths of the target's forwards to the next."""
    speeds = [simulated(APART, errors=errors, target=target).tokens_per_s for target in targets]
    return float(np.abs(np.diff(np.log(speeds))).max())


def test_no_whole_number_of_expansions_makes_a_cliff_where_forwards_are_averaged_over() -> None:
    targets = np.arange(0.9, 1.1, 0.01).tolist()
    exact, averaged = steepest(targets, EXACT), steepest(targets, ERRORS)
    assert exact > 0.03, "there is no cliff to average away"
    assert averaged < exact / 2


def test_elasticities_are_the_shares_of_a_request_that_forwards_take() -> None:
    assert simulated(ALONE, errors=ERRORS).elasticities == pytest.approx([1.0, 0.0], abs=0.03)
    both = simulated(Option.placed(make_policy("serial_tree", verify_rows=8), (4,)), errors=ERRORS).elasticities
    assert both.min() > 0.1
    assert both.sum() == pytest.approx(1.0, abs=0.1)
    assert simulated(APART, errors=EXACT).elasticities.tolist() == [0.0, 0.0]


def test_an_interval_includes_the_errors_in_which_all_prompts_share() -> None:
    def width(option: Option, known: KnownErrors) -> float:
        """Standard deviation of the speed, as a 95 % interval has it."""
        resampling = Resampling(seed=0, errors=known)
        low, high = resampling.interval(simulated(option, errors=ERRORS))
        return float(np.log(high / low) / 2 / 1.96)

    assert width(ALONE, NO_ERRORS) < 0.005
    assert width(ALONE, KnownErrors(forwards=ERRORS)) == pytest.approx(0.04, rel=0.1)
    # Nobody accepts anything without a draft.
    assert width(ALONE, KnownErrors(forwards=ERRORS, acceptance=0.5)) == pytest.approx(0.04, rel=0.1)
    apart, acceptance = width(APART, NO_ERRORS), width(APART, KnownErrors(acceptance=0.2))
    assert acceptance == pytest.approx(np.hypot(apart, 0.2), rel=0.15)
    assert width(APART, KnownErrors(acceptance=None)) == apart


def test_what_is_known_of_a_plans_inputs() -> None:
    recorded = known_errors(machine_profile(), None)
    assert (bool(recorded.forwards), recorded.acceptance, recorded.by_name) == (False, 0.0, {})
    published = known_errors(PROFILE, Acceptance(basis="their table", provenance=Provenance.PUBLISHED))
    assert published.acceptance == PUBLISHED_ACCEPTANCE
    assert list(published.by_name) == ["target forwards", "draft forwards", "acceptance"]
    assumed = known_errors(PROFILE, Acceptance(basis="a stand-in's", provenance=Provenance.ASSUMED))
    assert assumed.by_name["acceptance"] is None


@pytest.mark.parametrize(("passes", "share"), [(1, 2 / 3), (2, 1 / 6), (3, 0.0), (None, 0.0)])
def test_forwards_that_were_measured_in_fewer_passes_are_less_certain(passes: int | None, share: float) -> None:
    profile = machine_profile().model_copy(update={"passes": passes})
    assert forward_errors(profile).of_role == pytest.approx(dict.fromkeys(Role, PASS * share**0.5))
