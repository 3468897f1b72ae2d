import torch

from swiftspec.kernels.experts import experts

# Qwen3-30B-A3B, Mixtral 8x7B
for num_experts, num_active, hidden, width in ((128, 8, 2048, 768), (8, 2, 4096, 14336)):
    gate_up = torch.empty(num_experts, 2 * width, hidden, dtype=torch.bfloat16, device="meta")
    down = torch.empty(num_experts, hidden, width, dtype=torch.bfloat16, device="meta")
    for num_rows in (1, 8, 64):
        x = torch.empty(num_rows, hidden, dtype=torch.bfloat16, device="meta")
        weights = torch.empty(num_rows, num_active, device="meta")
        experts(x, weights, weights.to(torch.int32), gate_up, down, pdl=True)
