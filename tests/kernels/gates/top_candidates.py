import torch

from swiftspec.kernels.top_candidates import top_candidates

# Vocabularies of Llama 3 and Qwen 3.
for size, k in ((128256, 8), (151936, 8), (151936, 32)):
    top_candidates(torch.ones(8, size, dtype=torch.bfloat16), k, pdl=True)
