"""Plans with heads, block drafters and parallel drafts by name."""

from dataclasses import replace

import pytest

from swiftspec.acceptance.given import GivenAcceptance
from swiftspec.acceptance.lengths import unconditional_rates
from swiftspec.acceptance.usual import published_rates
from swiftspec.artifacts.plan import Candidate
from swiftspec.costmodel.forward import forward_parts
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import plan_for
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies.chains.parallel_chain import ParallelChain
from swiftspec.policies.effects import Role

DEPLOYMENT = Deployment(device="h100", num_devices=1, output_tokens=96)


def chosen(draft: str, policy: str, acceptance: str | None = None) -> Candidate:
    given = GivenAcceptance.parse(acceptance) if acceptance else None
    options = SearchOptions(policy=policy, num_jobs=1)
    planned = plan_for(
        DEPLOYMENT, target="qwen3-14b", draft=draft, acceptance=given, options=options, progress=lambda *_: None
    )
    return planned.plan.chosen


def num_draft_tokens(candidate: Candidate) -> int:
    length = candidate.shape["num_draft_tokens"]
    assert isinstance(length, int)
    return length


def test_two_drafters_of_one_mean_rate_get_chains_of_different_lengths() -> None:
    """Both accept half of eight tokens: one the first four or so, the other all eight or nothing."""
    decaying = chosen("dflash", "parallel_chain", "0.95,0.9,0.8,0.65,0.4,0.2,0.08,0.02")
    rising = chosen("dflash", "parallel_chain", "0.55,0.53,0.51,0.5,0.49,0.48,0.47,0.47")
    assert num_draft_tokens(decaying) < num_draft_tokens(rising)


@pytest.mark.parametrize(
    ("draft", "policy"), [("eagle3", "head_chain"), ("p-eagle", "parallel_chain"), ("dspark", "parallel_chain")]
)
def test_a_chosen_chain_is_accepted_as_published(draft: str, policy: str) -> None:
    found = chosen(draft, policy)
    length, rates = num_draft_tokens(found), published_rates("qwen3-14b", draft).rates
    whole = (*rates, *[rates[-1]] * max(0, length - len(rates)))  # beyond what is published the last rate holds
    expected = 1 + sum(unconditional_rates(whole[:length]))
    assert found.prediction.metrics.figures.tokens_per_round == pytest.approx(expected, rel=0.05)


def draft_seconds(name: str, rows: int) -> dict[str, float]:
    """Seconds of the parts of a draft's forward, by name; those of layers and of the LM head are summed."""
    model = PlannedModel.of(Role.TARGET, "qwen3-14b").draft(name)
    parts = forward_parts(
        model.spec, kernels=DEPLOYMENT.kernels, quant="bf16", degree=1, rows=rows, context=512, products=model.products
    )
    seconds = {"whole": 0.0}
    for part in parts:
        seconds[part.name] = seconds.get(part.name, 0.0) + part.seconds
        seconds["whole"] += part.seconds
    return seconds


@pytest.mark.parametrize("name", ["p-eagle", "dflash", "dspark"])
def test_a_block_is_one_forward_whatever_its_length(name: str) -> None:
    assert [ParallelChain(num_draft_tokens=length).serial_forwards for length in (1, 7)] == [1, 1]
    one_s, block_s = (draft_seconds(name, rows)["whole"] for rows in (1, 8))
    assert one_s < block_s < 1.5 * one_s  # the weights are read once
    assert block_s < draft_seconds("eagle3", 1)["whole"] * 7


def test_classes_of_block_drafters_differ_by_what_they_compute() -> None:
    peagle, dflash, dspark = (draft_seconds(name, 8) for name in ("p-eagle", "dflash", "dspark"))
    # Four layers and three features, against five of each.
    assert peagle["down"] == pytest.approx(dflash["down"] * 4 / 5)
    assert peagle["features"] < dflash["features"]
    assert "qkv of embeddings" in peagle.keys() - dflash.keys()
    # DSpark is DFlash and a product that every token of a block waits for.
    assert dspark["whole"] == pytest.approx(dflash["whole"] + dspark["markov"])
    assert dspark["markov"] == pytest.approx(8 * draft_seconds("dspark", 1)["markov"])


def test_a_head_on_devices_of_its_own_binds_what_the_plan_says() -> None:
    two = replace(DEPLOYMENT, num_devices=2)
    options = SearchOptions(policy="ssd_head", num_jobs=1)
    plan = plan_for(two, target="qwen3-14b", draft="eagle3", options=options, progress=lambda *_: None).plan
    assert (plan.chosen.policy, plan.chosen.split) == ("ssd_head", "1+1")
    assert plan.feature_bytes == 3 * 5120 * 2
    assert "sends the target's hidden states to the draft, 30.7 kB for each token" in plan.binds
    assert plan.model_copy(update={"chosen": plan.alternatives[0]}).binds == ""
    # Beside the time of ten long rounds, that of the prompt: the head reads it after the target.
    metrics = plan.chosen.prediction.metrics
    assert plan.chosen.patience_s >= 10 * metrics.figures.round_s.p95 + metrics.ttft_s - 1e-3


def test_a_head_does_not_draft_for_other_policies() -> None:
    with pytest.raises(ValueError, match="not with a head draft"):
        chosen("eagle3", "serial_chain")
