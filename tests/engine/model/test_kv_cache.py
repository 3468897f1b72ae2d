import pytest
import torch

from swiftspec.engine.model.kv_cache import KVCache
from tests.engine.forwards import by_slot
from tests.engine.shapes import small_spec


@pytest.fixture(params=[1, 4])
def cache(request: pytest.FixtureRequest) -> KVCache:
    """Prefix of 3, tree of 5; every number in slot s is s."""
    cache = KVCache(small_spec(), capacity=10, dtype=torch.float32, key_block=request.param)
    slots = torch.arange(float(cache.data.shape[3]))
    cache.data[:] = slots[:, None]
    blocks = slots.view(-1, 1, cache.key_block).expand(-1, cache.data.shape[4], -1)
    cache.data[:, 0] = blocks.reshape(cache.data.shape[3:])
    cache.extend_prefix(3)
    cache.extend_tree(5)
    return cache


def contents(cache: KVCache) -> list[int]:
    """Contents of each used slot, after checking that all layers, heads and dimensions moved alike."""
    used = by_slot(cache)[:, :, :, : cache.length]
    assert torch.equal(used, used[:1, :1, :1, :, :1].expand_as(used))
    return [int(value) for value in used[0, 0, 0, :, 0]]


def test_layout_is_layers_kv_heads_slots_dimensions(cache: KVCache) -> None:
    spec, num_slots = small_spec(), 10 if cache.key_block == 1 else 12
    assert cache.data.shape == (spec.num_layers, 2, spec.num_kv_heads, num_slots, spec.head_dim)


def test_kept_slots_follow_the_prefix_in_the_order_given(cache: KVCache) -> None:
    cache.keep((4, 0, 2), 1)
    assert contents(cache) == [0, 1, 2, 7, 3, 5]
    assert (cache.prefix_length, cache.tree_length) == (4, 2)


def test_slots_in_place_are_not_copied(cache: KVCache, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[list[int], int]] = []
    monkeypatch.setattr(KVCache, "_move", lambda self, slots, first: moved.append((list(slots), first)))
    cache.keep((0, 1, 2, 3), 2)
    assert moved == []
    assert (cache.prefix_length, cache.tree_length) == (5, 2)
    cache.keep((0, 1), 0)
    assert moved == []
    cache.keep((1,), 1)
    assert moved == [([1], 0)]


def test_only_slots_behind_the_first_gap_move(cache: KVCache) -> None:
    cache.keep((0, 1, 4, 3), 4)
    assert contents(cache) == [0, 1, 2, 3, 4, 7, 6]


def test_keeping_nothing_drops_the_tree(cache: KVCache) -> None:
    cache.keep((), 0)
    assert contents(cache) == [0, 1, 2]


def test_reset_forgets_prefix_and_tree(cache: KVCache) -> None:
    cache.reset()
    assert cache.length == 0


@pytest.mark.parametrize("slots", [(5,), (-1,), (1, 1)])
def test_slots_that_are_not_distinct_tree_slots_are_refused(cache: KVCache, slots: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected distinct numbers below 5"):
        cache.keep(slots, 0)


@pytest.mark.parametrize("num_verified", [-1, 3])
def test_verifying_more_than_is_kept_is_refused(cache: KVCache, num_verified: int) -> None:
    with pytest.raises(ValueError, match=f"num_verified is {num_verified}"):
        cache.keep((0, 1), num_verified)


def test_room_is_what_capacity_leaves(cache: KVCache) -> None:
    cache.require_room(2)
    with pytest.raises(ValueError, match="capacity is 10 slots; 8 in use and 3 more do not fit"):
        cache.require_room(3)


def test_capacity_must_be_positive() -> None:
    with pytest.raises(ValueError, match="capacity is 0"):
        KVCache(small_spec(), capacity=0, dtype=torch.float32)
