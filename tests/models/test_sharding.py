import dataclasses

import pytest

from swiftspec.models.published import known_model
from swiftspec.models.sharding import shard_of, sharded
from swiftspec.models.spec import weight_bytes

LARGE = known_model("llama-3-70b").spec


@pytest.mark.parametrize(
    ("degree", "heads", "kv_heads", "intermediate"),
    [(1, 64, 8, 28672), (3, 24, 3, 9568), (4, 16, 2, 7168), (5, 16, 2, 5744), (8, 8, 1, 3584), (16, 4, 1, 1792)],
)
def test_a_share_is_whole_groups_of_heads_and_padded_columns(
    degree: int, heads: int, kv_heads: int, intermediate: int
) -> None:
    share = sharded(LARGE, degree)
    assert (share.num_heads, share.num_kv_heads, share.intermediate_size) == (heads, kv_heads, intermediate)
    assert 0 <= share.vocab_size * degree - LARGE.vocab_size < 16 * degree


def test_depth_and_width_are_not_divided() -> None:
    share = sharded(LARGE, 8)
    assert (share.num_layers, share.hidden_size, share.head_dim) == (80, 8192, 128)


def test_shares_of_a_degree_that_divides_are_the_whole_but_for_norms() -> None:
    norms = 2 * (80 * 2 * 8192 + 8192)
    shares = 4 * (weight_bytes(sharded(LARGE, 4), "bf16") - norms)
    assert shares == weight_bytes(LARGE, "bf16") - norms


def test_one_device_holds_the_model() -> None:
    assert sharded(LARGE, 1) == LARGE


def test_no_device_is_none() -> None:
    with pytest.raises(ValueError, match="degree is 0; expected at least 1"):
        sharded(LARGE, 0)


@pytest.mark.parametrize("kv_heads", range(1, 9))
@pytest.mark.parametrize("group_size", range(1, 9))
def test_every_query_head_is_in_one_slot_with_its_own_kv_head(kv_heads: int, group_size: int) -> None:
    spec = dataclasses.replace(LARGE, num_heads=kv_heads * group_size, num_kv_heads=kv_heads)
    for degree in range(1, 17):
        dealt: list[int] = []
        for rank in range(degree):
            shard = shard_of(spec, degree, rank)
            assert (len(shard.query_heads), len(shard.kv_heads)) == (shard.spec.num_heads, shard.spec.num_kv_heads)
            for slot, head in enumerate(shard.query_heads):
                if head is not None:
                    dealt.append(head)
                    assert shard.kv_heads[slot // shard.spec.group_size] == head // group_size
        assert sorted(dealt) == list(range(spec.num_heads))


@pytest.mark.parametrize("degree", range(1, 9))
@pytest.mark.parametrize("size", [1, 16, 83, 4096])
def test_every_neuron_and_token_is_with_one_rank(size: int, degree: int) -> None:
    spec = dataclasses.replace(LARGE, intermediate_size=size, vocab_size=size)
    shards = [shard_of(spec, degree, rank) for rank in range(degree)]
    assert [neuron for shard in shards for neuron in shard.neurons] == list(range(size))
    assert [token for shard in shards for token in shard.vocabulary] == list(range(size))


def test_uneven_groups_are_cut_where_that_saves_most() -> None:
    two_groups = dataclasses.replace(LARGE, num_heads=16, num_kv_heads=2)
    share = sharded(two_groups, 3)  # six pieces of three heads or fewer, not two of eight and an idle device
    assert (share.num_heads, share.num_kv_heads) == (6, 2)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_is_below_the_degree(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank is {rank}; expected 0 to 1"):
        shard_of(LARGE, 2, rank)
