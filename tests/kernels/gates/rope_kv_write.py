import torch

from swiftspec.kernels.rope_kv_write import rope_kv_write

# (heads, kv heads, head dimension): a 70B target's shard without and with head norms, a small draft.
for heads, kv_heads, dim, has_norm in ((16, 2, 128, False), (16, 2, 128, True), (32, 8, 64, False)):
    qkv = torch.ones(8, (heads + 2 * kv_heads) * dim, dtype=torch.bfloat16)
    cache = torch.ones(kv_heads, 4096, dim, dtype=torch.bfloat16)
    norm = torch.ones(dim, dtype=torch.bfloat16) if has_norm else None
    positions = torch.arange(8, dtype=torch.int32)
    lengths = torch.tensor([0, 0], dtype=torch.int32)
    angles = torch.ones(4096, dim)
    rope_kv_write(
        qkv, angles, positions, lengths, cache, cache, num_heads=heads, q_norm_D=norm, k_norm_D=norm, pdl=True
    )
