import torch

from swiftspec.kernels.quantised_gemm import quantised_gemm
from tests.kernels.test_quantised_gemm import KINDS, WIDE_TILES

for kind in KINDS:
    quantised_gemm(torch.ones(64, 1024).half(), kind.quantise(torch.ones(64, 1024)), config=WIDE_TILES)
