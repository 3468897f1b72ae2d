"""A model whose shards are on several ranks answers what it answers alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.models.inflation import Inflation
from swiftspec.policies.effects import Role
from tests.engine.checkpoints import write_checkpoint
from tests.engine.ranks import Ranks, joined_ranks, last_logits, led, whole_request

# 6 query heads and 2 key/value heads unless the variant says otherwise, 72 neurons, 83 tokens: nothing divides by 5.
VARIANTS = ("llama", "llama-tied", "llama-bias", "llama-no-groups", "qwen2", "qwen3", "qwen3-tied-bias")


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    with joined_ranks(request.param) as processes:
        yield processes


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return {name: write_checkpoint(tmp_path_factory.mktemp(name), name) for name in VARIANTS}


def assert_as_alone(ranks: Ranks, kind: str, held: Mapping[Role, Path]) -> None:
    together, *others = ranks.run(led, kind, held, whole_request)
    assert others == [None] * (len(ranks) - 1)
    alone = led(TPGroup(), kind, held, whole_request)
    assert [logits.shape for logits in together] == [logits.shape for logits in alone]
    for logits, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", ["packed", "static"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_one_rank(ranks: Ranks, directories: Mapping[str, Path], kind: str, variant: str) -> None:
    assert_as_alone(ranks, kind, {Role.TARGET: directories[variant], Role.DRAFT: directories["llama"]})


@pytest.mark.parametrize("kind", ["packed", "torch", "static"])
@pytest.mark.parametrize("variant", ["mixtral", "qwen3-moe"])  # experts of 40 and 24 neurons, divided by width
def test_every_rank_has_a_part_of_each_expert(ranks: Ranks, kind: str, variant: str, tmp_path: Path) -> None:
    assert_as_alone(ranks, kind, {Role.TARGET: write_checkpoint(tmp_path, variant)})


def test_more_ranks_than_heads_divide_by(directories: Mapping[str, Path]) -> None:
    """More than there are pieces of heads: some hold nothing but padding."""
    with joined_ranks(7) as many:
        assert_as_alone(many, "packed", {Role.TARGET: directories["qwen3-tied-bias"]})


def test_an_inflated_model_is_cut_after_it_was_made(ranks: Ranks, directories: Mapping[str, Path]) -> None:
    expected = last_logits(TPGroup(), directories["qwen3"], None)
    logits = ranks.run(last_logits, directories["qwen3"], Inflation(layers=5, hidden=80))[0]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
