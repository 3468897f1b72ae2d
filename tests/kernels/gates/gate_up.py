import torch

from swiftspec.kernels.skinny_gemm import gate_up

# Llama 8B whole, a 70B's quarter
for n, k in ((28672, 4096), (14336, 8192)):
    weight = torch.empty(n, k, dtype=torch.bfloat16)
    for num_rows in (1, 8, 64):
        gate_up(torch.empty(num_rows, k, dtype=torch.bfloat16), weight, pdl=True)
