import torch

from swiftspec.kernels.products import TileConfig
from swiftspec.kernels.skinny_gemm import skinny_gemm

# qkv, output, down: Llama 8B whole, a 70B's quarter
SHAPES = [(6144, 4096), (4096, 4096), (4096, 14336), (2560, 8192), (8192, 2048), (8192, 7168)]


def launch(num_rows: int, n: int, k: int, config: TileConfig | None = None) -> None:
    bf16 = torch.bfloat16
    skinny_gemm(torch.empty(num_rows, k, dtype=bf16), torch.empty(n, k, dtype=bf16), config=config, pdl=True)


for n, k in SHAPES:
    launch(8, n, k)
launch(1, *SHAPES[0])
launch(16, *SHAPES[-1])
launch(64, *SHAPES[0])
launch(8, *SHAPES[0], TileConfig(block_n=64, block_k=128, split_k=4))
