import pytest
import torch
from torch import Tensor

from swiftspec.kernels.exchange import map_peers, shared_buffers


def words(number: int = 8) -> Tensor:
    return torch.zeros(number, dtype=torch.int32)


def test_table_holds_addresses_by_rank() -> None:
    buffers = shared_buffers(3, 8, fill=-7)
    peers = map_peers(buffers, 2)
    assert peers.table.tolist() == [buffer.data_ptr() for buffer in buffers]
    assert (peers.world_size, peers.rank) == (3, 2)
    assert peers.own.data_ptr() == buffers[2].data_ptr()
    assert all(buffer.is_shared() and buffer.tolist() == [-7] * 8 for buffer in buffers)


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([], r"rank is 0; expected 0 to -1, for 0 buffers"),
        ([words(), words(9)], r"buffers\[1\] has 9 words; buffers\[0\] has 8"),
        ([words(), words().float()], r"buffers\[1\] is torch.float32 of shape \(8,\); expected int32 words"),
        ([words(), words().view(2, 4)], r"buffers\[1\] is torch.int32 of shape \(2, 4\)"),
        ([words(9)[1:], words()], r"buffers\[0\] starts at .*; expected a multiple of 16 bytes"),
        ([words(), words().to("meta")], r"buffers\[1\] is on meta; expected cpu, as buffers\[0\]"),
    ],
    ids=["none", "sizes", "dtype", "shape", "start", "device"],
)
def test_bad_buffer_is_named(buffers: list[Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        map_peers(buffers, 0)
