"""Times all-reduces between processes, one for each device: NCCL's on GPUs, gloo's on a CPU."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from swiftspec.engine.model.gpu.cuda_graph import GraphPool, Replay
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.profiler.helper_processes import answer_of_ranks
from swiftspec.profiler.op_timer import OpTimer, Timing

BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
_SAMPLES = 30
_WARM_UP = 3
_IN_A_ROW = 10


def all_reduce_times(device: str, degree: int, message_bytes: Sequence[int]) -> dict[int, Timing]:
    """Seconds of one all-reduce among `degree` devices, by bytes: the slowest rank's. RuntimeError if one fails."""
    with run_folder() as folder:
        arguments = (degree, device, str(folder / "rendezvous"), tuple(message_bytes))
        what = f"all-reduce among {degree} of {device}"
        samples_s: dict[int, list[float]] = answer_of_ranks(what, _rank, arguments, num_ranks=degree)
    return {size: Timing.of(seconds) for size, seconds in samples_s.items()}


def _rank(rank: int, degree: int, device: str, rendezvous: str, message_bytes: Sequence[int], answers: Any) -> None:
    place = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if device == "cuda":
        torch.cuda.set_device(place)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(BACKENDS[device], init_method=f"file://{rendezvous}", rank=rank, world_size=degree)
    try:
        samples_s = {size: _samples(place, size) for size in message_bytes}
        if rank == 0:
            answers.put(samples_s)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _samples(place: torch.device, num_bytes: int) -> list[float]:
    """Samples, each the mean of a few in a row, on GPUs in one CUDA graph; every rank takes the same number."""
    tensor = torch.zeros(num_bytes // 4, device=place)

    def several() -> None:
        for _ in range(_IN_A_ROW):
            dist.all_reduce(tensor)

    watch, replay = OpTimer(place), Replay(several, GraphPool(place))
    for _ in range(_WARM_UP):
        replay()
    seconds = torch.tensor([watch.once(replay) / _IN_A_ROW for _ in range(_SAMPLES)], device=place)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return [float(value) for value in seconds]
