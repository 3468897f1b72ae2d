from pathlib import Path

import pytest

from swiftspec.engine.model.cpu_model import CpuDecoder
from swiftspec.engine.model.timing import forward_latencies_s
from tests.engine.checkpoints import write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


def test_every_repeat_is_one_forward_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = CpuDecoder.load(write_checkpoint(tmp_path, "llama"))
    seen: list[tuple[int, int]] = []
    forward = CpuDecoder.forward

    def recorded(self: CpuDecoder, tokens, positions, ancestors, cache):  # type: ignore[no-untyped-def]  # as forward
        seen.append((len(tokens), cache.length))
        return forward(self, tokens, positions, ancestors, cache)

    monkeypatch.setattr(CpuDecoder, "forward", recorded)
    latencies = forward_latencies_s(decoder, rows=5, context=40, repeats=4, warmup=2)
    assert seen == [(5, 40)] * 6
    assert len(latencies) == 4
    assert all(latency > 0 for latency in latencies)
