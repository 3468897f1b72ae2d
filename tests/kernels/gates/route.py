import torch

from swiftspec.kernels.route import route

# Qwen3-30B-A3B, Mixtral
for num_experts, num_active in ((128, 8), (8, 2)):
    route(torch.empty(8, num_experts, dtype=torch.bfloat16), num_active, is_normalised=True, pdl=True)
