import torch

from swiftspec.kernels.all_reduce import all_reduce
from swiftspec.kernels.exchange import SENTINEL, Exchange, map_peers
from tests.kernels.buffers import shared_buffers

for world_size, hidden, dtype in ((2, 4096, torch.bfloat16), (8, 8192, torch.bfloat16)):
    words = Exchange.words_needed(world_size=world_size, hidden=hidden, dtype=dtype, max_rows=8)
    peers = map_peers(shared_buffers(world_size, words, fill=SENTINEL.value), 1)
    exchange = Exchange(peers, hidden, dtype, max_rows=8)
    row = torch.ones(8, hidden, dtype=dtype)
    all_reduce(row, row.clone(), row[0].clone(), exchange, eps=1e-5, pdl=True)
    all_reduce(None, row.clone(), row[0].clone(), exchange, eps=1e-5, num_rows=8, pdl=True)
