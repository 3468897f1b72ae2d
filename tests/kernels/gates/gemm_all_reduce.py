import torch

from swiftspec.kernels.exchange import SENTINEL, Exchange, map_peers
from tests.kernels.buffers import shared_buffers
from tools.gemm_all_reduce import Workspace, gemm_all_reduce

DTYPE = torch.bfloat16

# The output projections of an 8B model on two devices and of a 70B model on eight.
for world_size, hidden, size_k, rows in (
    (2, 4096, 2048, 8),
    (8, 8192, 1024, 8),
    (4, 8192, 2048, 32),
    (8, 8192, 1024, 64),
):
    words = Exchange.words_needed(world_size=world_size, hidden=hidden, dtype=DTYPE, max_rows=rows)
    exchange = Exchange(map_peers(shared_buffers(world_size, words, fill=SENTINEL.value), 1), hidden, DTYPE, rows)
    workspace = Workspace.make(hidden=hidden, device=torch.device("cpu"))
    x, weight = torch.ones(rows, size_k, dtype=DTYPE), torch.ones(hidden, size_k, dtype=DTYPE)
    residual, norm = torch.ones(rows, hidden, dtype=DTYPE), torch.ones(hidden, dtype=DTYPE)
    gemm_all_reduce(x, weight, residual, norm, exchange, eps=1e-5, workspace=workspace, pdl=True)
