"""Times forward passes of a decoder; the profiler and the benchmarks build on it. Random tokens, never real text."""

from __future__ import annotations

import time

import torch

from swiftspec.engine.model.runner import Decoder

__all__ = ["forward_latencies_s"]


def forward_latencies_s(
    decoder: Decoder, *, rows: int, context: int, repeats: int = 20, warmup: int = 3
) -> list[float]:
    """Seconds of `repeats` forwards of `rows` rows, a chain after a prefix of `context` tokens.

    From token ids to logits. The prefix is prefilled once and not timed; the rows are dropped after each forward.
    """
    cache = decoder.new_cache(context + rows)
    generator = torch.Generator().manual_seed(0)
    tokens: list[int] = torch.randint(decoder.spec.vocab_size, (context + rows,), generator=generator).tolist()
    decoder.prefill(tokens[:context], cache)
    positions = list(range(context, context + rows))
    ancestors = [(1 << row) - 1 for row in range(rows)]
    latencies = []
    for _ in range(warmup + repeats):
        start = time.perf_counter()
        logits = decoder.forward(tokens[context:], positions, ancestors, cache)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)
        latencies.append(time.perf_counter() - start)
        cache.keep((), 0)
    return latencies[warmup:]
