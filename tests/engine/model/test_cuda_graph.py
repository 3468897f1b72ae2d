from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftspec.engine.model.gpu.cuda_graph import GraphPool, Replay

with_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU records graphs")


class RecordingPool(GraphPool):
    """Records as a GPU would, by remembering what to call."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.records = True
        self.replays = 0

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        def replay() -> None:
            self.replays += 1

        return replay, function()


def test_on_a_cpu_every_call_runs_the_function() -> None:
    numbers = count()
    replay = Replay(lambda: next(numbers), GraphPool(torch.device("cpu")))
    assert [replay(), replay(), replay()] == [0, 1, 2]


def test_what_is_recorded_runs_again_on_every_call_and_answers_in_the_same_tensors() -> None:
    pool, numbers = RecordingPool(), count()
    replay = Replay(lambda: next(numbers), pool)
    assert [replay(), replay(), replay()] == [0, 0, 0]
    assert pool.replays == 3


@with_gpu
def test_a_graph_reads_what_its_inputs_have_become() -> None:
    number = torch.ones(4, device="cuda")
    replay: Replay[Tensor] = Replay(lambda: 2.0 * number, GraphPool(torch.device("cuda")))
    first = replay()
    assert first.tolist() == [2.0] * 4
    number.fill_(5.0)
    assert replay() is first
    assert first.tolist() == [10.0] * 4


@with_gpu
def test_a_stream_of_ones_own_records_too() -> None:
    number = torch.ones(4, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        replay: Replay[Tensor] = Replay(lambda: number + 1.0, GraphPool(torch.device("cuda")))
        assert replay().tolist() == [2.0] * 4


@with_gpu
def test_a_pool_outlives_its_graphs() -> None:
    """As when a request ends, and with it a cache, before the next one begins."""
    pool = GraphPool(torch.device("cuda"))
    kept = [Replay(partial(torch.full, (4,), turn, device="cuda"), pool)() for turn in range(3)]
    assert [answer.tolist() for answer in kept] == [[0] * 4, [1] * 4, [2] * 4]
