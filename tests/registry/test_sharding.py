import pytest

from swiftspec.registry import known_model, sharded, weight_bytes

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
