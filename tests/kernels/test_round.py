"""The cache's kernels together: a round leaves the same cache as decoding token by token."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from swiftspec.kernels.keep_slots import keep_slots
from swiftspec.kernels.rope_kv_write import rope_kv_write, rope_kv_write_reference
from swiftspec.kernels.tree_attention import tree_attention

HEADS, KV_HEADS, DIM, CAPACITY = 4, 2, 32, 128
PREFIX = 70


class Model:
    """One attention layer whose projection is a table: enough to tell every token and every position apart."""

    def __init__(self, device: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.qkv_VQ = torch.randn(200, (HEADS + 2 * KV_HEADS) * DIM, generator=generator).to(device)
        phases = torch.outer(torch.arange(CAPACITY).float(), 1e4 ** -(torch.arange(0, DIM, 2) / DIM))
        self.cos_sin_CD = torch.cat([phases.cos(), phases.sin()], dim=-1).to(device)
        self.cache_L2GCD = torch.zeros(1, 2, KV_HEADS, CAPACITY, DIM, device=device)
        self.lengths_2 = torch.zeros(2, dtype=torch.int32, device=device)
        self.device = device

    def forward(self, tokens: Sequence[int], positions: Sequence[int], ancestors: Sequence[int]) -> Tensor:
        """Attention of new rows; they become the newest nodes of the tree."""
        keys_GCD, values_GCD = self.cache_L2GCD[0]
        q_RHD = rope_kv_write(
            self.qkv_VQ[list(tokens)],
            self.cos_sin_CD,
            torch.tensor(positions, device=self.device),
            self.lengths_2,
            keys_GCD,
            values_GCD,
            num_heads=HEADS,
        )
        words = [[word & 0xFFFFFFFF, word >> 32] for word in ancestors]
        words_RW = torch.tensor(words, device=self.device).to(torch.int32)
        out = tree_attention(q_RHD, keys_GCD, values_GCD, words_RW, self.lengths_2, scale=DIM**-0.5)
        self.lengths_2[1] += len(tokens)
        return out

    def keep(self, slots_K: Tensor, *, num_verified: int) -> None:
        keep_slots(self.cache_L2GCD, slots_K, self.lengths_2[:1])
        self.lengths_2[0] += num_verified
        self.lengths_2[1] = 0

    def from_scratch(self, tokens: Sequence[int]) -> Tensor:
        """The last token's attention in a plain sequence, (H, D)."""
        keys_GCD, values_GCD = torch.zeros(2, KV_HEADS, len(tokens), DIM, device=self.device)
        positions = torch.arange(len(tokens), device=self.device)
        empty = torch.zeros_like(self.lengths_2)
        q_RHD = rope_kv_write_reference(
            self.qkv_VQ[list(tokens)], self.cos_sin_CD, positions, empty, keys_GCD, values_GCD, num_heads=HEADS
        )
        last_H1D = q_RHD[-1, :, None]
        return scaled_dot_product_attention(last_H1D, keys_GCD, values_GCD, enable_gqa=True)[:, 0]


def with_ancestors(parents: Sequence[int]) -> list[int]:
    words: list[int] = []
    for node, parent in enumerate(parents):
        words.append((words[parent] if parent >= 0 else 0) | 1 << node)
    return words


def test_round_leaves_what_decoding_would(device: str) -> None:
    model = Model(device)
    prefix = list(range(PREFIX))
    for chunk in (prefix[:40], prefix[40:]):  # a prompt is a chain of at most 64 rows at a time
        chain = with_ancestors(range(-1, len(chunk) - 1))
        model.forward(chunk, chunk, chain)  # token t stands at position t
        rows = torch.arange(len(chunk), dtype=torch.int32, device=device)
        model.keep(rows, num_verified=len(chunk))

    # Verified: 100 (the root), 102, 104 among siblings that the target did not choose. Bonus token: 110.
    parents, tokens = [-1, 0, 0, 1, 2, 2], [100, 101, 102, 103, 104, 105]
    positions = [PREFIX, PREFIX + 1, PREFIX + 1, PREFIX + 2, PREFIX + 2, PREFIX + 2]
    out_RHD = model.forward(tokens, positions, with_ancestors(parents))
    torch.testing.assert_close(out_RHD[4], model.from_scratch([*prefix, 100, 102, 104]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out_RHD[3], model.from_scratch([*prefix, 100, 101, 103]), rtol=1e-5, atol=1e-5)
    path = torch.tensor([0, 2, 4, -1, -1, -1], dtype=torch.int32, device=device)
    model.keep(path, num_verified=3)

    bonus = 110
    next_RHD = model.forward([bonus, 120], [PREFIX + 3, PREFIX + 4], with_ancestors([-1, 0]))
    for row, sequence in enumerate([[bonus], [bonus, 120]]):
        expected = model.from_scratch([*prefix, 100, 102, 104, *sequence])
        torch.testing.assert_close(next_RHD[row], expected, rtol=1e-5, atol=1e-5)
