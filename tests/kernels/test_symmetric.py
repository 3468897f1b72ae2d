from swiftspec.kernels.exchange import map_peers
from tests.kernels.buffers import shared_buffers


def test_table_holds_addresses_by_rank() -> None:
    buffers = shared_buffers(3, 8, fill=-7)
    peers = map_peers(buffers, 2)
    assert peers.table.tolist() == [buffer.data_ptr() for buffer in buffers]
    assert (peers.world_size, peers.rank) == (3, 2)
    assert peers.own.data_ptr() == buffers[2].data_ptr()
    assert all(buffer.is_shared() and buffer.tolist() == [-7] * 8 for buffer in buffers)
