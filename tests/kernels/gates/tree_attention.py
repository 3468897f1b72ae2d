import torch

from swiftspec.kernels.tree_attention import tree_attention, tree_attention_workspace

# (rows, heads, kv heads, head dimension, words): one row of a small draft with a large tree; eight of a 70B target's
# shard, and in fp32.
for rows, heads, kv_heads, dim, words, dtype in (
    (1, 32, 8, 64, 5, torch.bfloat16),
    (8, 16, 2, 128, 1, torch.bfloat16),
    (8, 16, 2, 128, 2, torch.float32),
):
    query = torch.ones(rows, heads, dim, dtype=dtype)
    cache = torch.ones(kv_heads, 4096, dim, dtype=dtype)
    ancestors = torch.ones(rows, words, dtype=torch.int32)
    lengths = torch.tensor([100, 0], dtype=torch.int32)
    workspace = tree_attention_workspace(rows, heads, cache)
    tree_attention(query, cache, cache, ancestors, lengths, scale=0.1, workspace=workspace, pdl=True)
