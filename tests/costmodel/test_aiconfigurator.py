"""Op tables from an installed package: its parquet files, read here by a fake pyarrow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from swiftspec.costmodel import aiconfigurator
from swiftspec.costmodel.aiconfigurator import from_package

GEMM = {"gemm_dtype": "bfloat16", "n": 512, "k": 512}
ATTENTION = {
    "window_size": 0,
    "head_dim": 128,
    "batch_size": 1,
    "num_heads": 8,
    "num_key_value_heads": 1,
    "kv_cache_dtype": "bfloat16",
    "step": 255,
    "isl": 1,
    "latency": 0.011,
}
EXPERTS = {
    "kernel_source": "triton",
    "hidden_size": 7168,
    "inter_size": 2048,
    "topk": 8,
    "num_experts": 256,
    "distribution": "power_law_1.01",
    "moe_dtype": "fp8_block",
    "moe_tp_size": 8,
    "moe_ep_size": 1,
}
LATENT = {"num_heads": 16, "kv_cache_dtype": "bfloat16", "step": 255, "isl": 1, "batch_size": 4}
LINEAR = {"phase": "generation", "seq_len": 1, "num_k_heads": 2, "num_v_heads": 8, "batch_size": 1}
EXCHANGE = {"kernel_source": "vLLM_custom_graph", "num_gpus": 2, "version": "0.24.0"}
TABLES: dict[str, list[dict[str, Any]]] = {
    "gemm/vllm/0.24.0/gemm_perf": [
        {**GEMM, "m": 1, "latency": 0.004},
        {**GEMM, "m": 256, "latency": 0.008},
        {**GEMM, "m": 300, "latency": 0.009},
        {**GEMM, "m": 1, "gemm_dtype": "fp8_block", "latency": 0.055},
    ],
    "gemm/vllm/0.9.0/gemm_perf": [{**GEMM, "m": 1, "latency": 0.040}],
    "attention/vllm/0.24.0/generation_attention_perf": [ATTENTION, {**ATTENTION, "window_size": 128}],
    "comm/vllm/0.24.0/custom_allreduce_perf": [
        {**EXCHANGE, "message_size": 128, "latency": 0.004},
        {**EXCHANGE, "message_size": 256, "kernel_source": "vLLM_custom_eager", "latency": 0.020},
    ],
    "comm/sglang/0.5.6/custom_allreduce_perf": [
        {**EXCHANGE, "version": "1.2.0rc5", "message_size": 128, "latency": 0.003},
    ],
    "moe/vllm/0.24.0/moe_perf": [
        *({**EXPERTS, "num_tokens": rows, "latency": 0.04 + 0.01 * rows} for rows in (1, 2, 4, 8, 16)),
        {**EXPERTS, "num_tokens": 1, "distribution": "balanced", "latency": 0.03},
        {**EXPERTS, "num_tokens": 1, "moe_tp_size": 8, "moe_ep_size": 8, "latency": 0.02},
    ],
    "mla/sglang/0.5.14/generation_mla_perf": [
        {**LATENT, "latency": 0.012},
        {**LATENT, "latency": 0.011},
        {**LATENT, "batch_size": 128, "latency": 0.5},
    ],
    "linear_attention/vllm/0.24.0/gdn_perf": [
        {**LINEAR, "kernel_source": "causal_conv1d_update", "latency": 0.002},
        {**LINEAR, "kernel_source": "fused_recurrent", "latency": 0.004},
        {**LINEAR, "kernel_source": "chunk", "phase": "context", "latency": 0.012},
        {**LINEAR, "kernel_source": "chunk", "phase": "context", "seq_len": 4, "latency": 0.012},
        {**LINEAR, "kernel_source": "causal_conv1d_fn", "phase": "context", "seq_len": 4, "latency": 0.8},
    ],
    "kda/vllm/0.24.0/kda_perf": [
        {**LINEAR, "kernel_source": "flash", "phase": "context", "seq_len": 4, "latency": 0.02},
        {**LINEAR, "kernel_source": "recurrent", "phase": "verify", "seq_len": 4, "latency": 0.006},
    ],
    "comm/nccl/2.29.2/nccl_perf": [
        {"op_name": "all_gather", "num_gpus": 2, "nccl_dtype": "half", "message_size": 256, "latency": 0.005},
    ],
}


class _Table(NamedTuple):
    rows: list[dict[str, Any]]

    def to_pylist(self) -> list[dict[str, Any]]:
        return self.rows


class _Schema(NamedTuple):
    names: list[str]


class _Parquet:
    """The part of pyarrow.parquet that is used."""

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        return TABLES["/".join(path.with_suffix("").parts[-4:])]

    def read_schema(self, path: Path) -> _Schema:
        return _Schema(list(self._rows(path)[0]))

    def read_table(
        self, path: Path, *, columns: list[str], filters: Sequence[tuple[str, str, list[Any]]] | None
    ) -> _Table:
        kept = [row for row in self._rows(path) if all(row[name] in values for name, _, values in filters or ())]
        return _Table([{name: row[name] for name in columns} for row in kept])


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TABLES:
        path = tmp_path / "h200_sxm" / f"{name}.parquet"
        path.parent.mkdir(parents=True)
        path.touch()
    monkeypatch.setattr(aiconfigurator, "_data", lambda: tmp_path)
    monkeypatch.setattr(aiconfigurator, "import_module", lambda _: _Parquet())
    monkeypatch.setattr(aiconfigurator, "version", lambda _: "0.12.0")


def test_gemms_of_the_newest_version_at_the_rows_that_are_kept() -> None:
    columns = from_package(device="h200-sxm").tables["gemm"]
    assert columns["rows"].tolist() == [1, 256]
    assert columns["latency_s"].tolist() == pytest.approx([4e-6, 8e-6])


def test_attention_counts_the_new_token_and_has_no_window() -> None:
    columns = from_package(device="h200-sxm").tables["attention"]
    assert columns["context"].tolist() == [256]


def test_messages_are_counted_in_bytes_captured_and_not_copied() -> None:
    columns = from_package(device="h200-sxm").tables["collective"]
    found = zip(columns["op"].tolist(), columns["implementation"].tolist(), columns["num_bytes"].tolist(), strict=True)
    assert sorted(found) == [("all_gather", "nccl", 512), ("all_reduce", "vllm_custom", 256)]


def test_experts_are_read_for_one_routing_and_one_division() -> None:
    columns = from_package(device="h200-sxm").tables["experts"]
    assert columns["rows"].tolist() == [1, 2, 4, 8, 16]
    assert set(zip(columns["dtype"].tolist(), columns["parts"].tolist(), columns["holders"].tolist(), strict=True)) == {
        ("fp8", 8, 1)
    }
    assert columns["latency_s"].tolist()[0] == pytest.approx(50e-6)


def test_latent_attention_is_its_fastest_kernel() -> None:
    columns = from_package(device="h200-sxm").tables["latent_attention"]
    assert columns["latency_s"].tolist() == pytest.approx([11e-6])
    assert (columns["context"].tolist(), columns["sequences"].tolist()) == ([256], [4])


def test_linear_attention_is_convolution_and_recurrence_where_no_host_was_timed() -> None:
    columns = from_package(device="h200-sxm").tables["linear_attention"]
    found = {
        (kind, rows): seconds * 1e6
        for kind, rows, seconds in zip(*(columns[name].tolist() for name in ("kind", "rows", "latency_s")), strict=True)
    }
    assert found == pytest.approx({("gdn", 1): 6.0, ("gdn", 4): 12.0, ("kda", 4): 6.0})


def test_the_licence_comes_along() -> None:
    tables = from_package(device="h200-sxm")
    assert tables.licence == "Apache-2.0"
    assert "NVIDIA" in tables.attribution


def test_a_device_that_the_package_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match=r"device is 'l40s'; aiconfigurator-core 0\.12\.0 has no measurements of it"):
        from_package(device="l40s")


def test_a_column_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLES, "gemm/vllm/0.24.0/gemm_perf", [{"m": 1, "n": 2, "gemm_dtype": "fp8", "latency": 1.0}])
    with pytest.raises(ValueError, match=r"gemm_perf.parquet: column k is missing"):
        from_package(device="h200-sxm")


def test_without_pyarrow_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(aiconfigurator, "import_module", missing)
    with pytest.raises(ValueError, match="needs pyarrow, which is not installed"):
        from_package(device="h200-sxm")
