"""Comparison of a GPU's decoder with the CPU's, here with plain torch in the GPU's place."""

from collections import Counter

import pytest

from swiftspec.engine.model.gpu.kv_cache import GpuKVCache
from swiftspec.engine.model.gpu.model import GpuDecoder
from tools.agreement import decoder_records, greedy_records


@pytest.mark.usefixtures("one_thread")
def test_every_output_is_generated_in_one_cache_per_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each new cache would have all its graphs recorded first, for every policy and prompt."""
    caches: Counter[GpuDecoder] = Counter()
    new_cache = GpuDecoder.new_cache

    def counted(self: GpuDecoder, capacity: int | None = None) -> GpuKVCache:
        caches[self] += 1
        return new_cache(self, capacity)

    monkeypatch.setattr(GpuDecoder, "new_cache", counted)
    records = list(greedy_records("cpu", dtypes=["float32"], num_prompts=2, max_new_tokens=4))
    assert {"eagle2_tree", "parallel_tree"} < {record["policy"] for record in records}
    assert {record["differing_outputs"] for record in records} == {0}
    assert {record["tokens"] for record in records} == {8}
    assert set(caches.values()) == {1}
    assert len(caches) == 3  # a target, a serial and a parallel draft


@pytest.mark.usefixtures("one_thread")
def test_logits_of_a_coarser_dtype_differ_more() -> None:
    exact, rounded = decoder_records("cpu", model="demo/draft", dtypes=["float32", "bfloat16"], rows=(5,))
    assert exact["logits_error"] < 1e-5 < rounded["logits_error"] < 0.1
    assert exact["same_first_choice"] == 5
