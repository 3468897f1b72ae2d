import torch

from swiftspec.kernels.quantised_gemm import Fp8Weight, Int4Weight, quantised_gemm

# qkv, output, gate and up, down: Llama 8B whole, a 70B's quarter
SHAPES = [(6144, 4096), (2560, 8192), (8192, 2048), (14336, 8192), (8192, 7168)]


def launch(num_rows: int, weight: Int4Weight | Fp8Weight, *, gated: bool = False) -> None:
    x = torch.empty(num_rows, weight.shape[1], dtype=torch.bfloat16)
    quantised_gemm(x, weight, gated=gated, pdl=True)


def int4(n: int, k: int) -> Int4Weight:
    return Int4Weight(torch.empty(n, k // 8, dtype=torch.int32), torch.empty(k // 256, n, 2, dtype=torch.float16))


def fp8(n: int, k: int) -> Fp8Weight:
    return Fp8Weight(torch.empty(n, k, dtype=torch.float8_e4m3fn), torch.empty(n))


for n, k in SHAPES:
    launch(8, int4(n, k))
for num_rows in (1, 8, 16, 64):
    launch(num_rows, int4(14336, 8192), gated=True)
for num_rows in (8, 64):
    launch(num_rows, fp8(14336, 8192), gated=True)
