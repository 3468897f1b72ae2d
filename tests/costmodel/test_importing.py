"""Op tables from a folder of CSV files."""

from pathlib import Path

import pytest

from swiftspec.costmodel.importing import from_directory

GEMM = "system,framework,version,dtype,m,n,k,latency_us"
ATTENTION = "system,framework,version,kind,dtype,kv_dtype,batch,query_len,kv_len,heads,kv_heads,head_dim,latency_us"
COLLECTIVE = "system,op,implementation,version,mode,dtype,gpus,message_bytes,run,source,latency_us"
ELEMENTWISE = "system,framework,version,op,dtype,m,k,derived,latency_us"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    _write(tmp_path, "gemm", GEMM, "h200_sxm,vllm,0.24.0,bf16,1,512,512,3.5", "h100_sxm,vllm,0.24.0,bf16,1,512,512,9.9")
    _write(
        tmp_path,
        "attention",
        ATTENTION,
        "h200_sxm,vllm,0.24.0,generation,bf16,bf16,1,1,2,8,1,128,11",
        "h200_sxm,vllm,0.24.0,context,bf16,bf16,1,16,16,8,1,128,12",
    )
    _write(
        tmp_path,
        "all_reduce",
        COLLECTIVE,
        "h200_sxm,all_reduce,trtllm,1.3.0rc9,graph,bf16,2,512,1,x,9",
        "h200_sxm,all_reduce,trtllm,1.3.0rc10,graph,bf16,2,512,1,x,2",
        "h200_sxm,all_reduce,trtllm,1.3.0rc10,graph,bf16,2,512,2,x,3",
        "h200_sxm,all_reduce,trtllm,1.3.0rc10,graph,bf16,2,512,3,x,8",
        "h200_sxm,all_reduce,trtllm,1.3.0rc10,eager,bf16,2,1024,1,x,20",
    )
    _write(
        tmp_path,
        "elementwise",
        ELEMENTWISE,
        "h200_sxm,vllm,0.24.0,fp8_quant_static,fp8,1,512,0,2",
        "h200_sxm,vllm,0.24.0,fp8_quant_dynamic_minus_static,fp8,1,512,1,0.5",
        "h200_sxm,sglang,0.5.14,fp8_quant_static,fp8,1,512,0,7",
    )
    return tmp_path


def _write(folder: Path, name: str, header: str, *rows: str) -> None:
    (folder / f"{name}.csv").write_text("\n".join((header, *rows)) + "\n")


def test_rows_of_the_device_become_seconds(folder: Path) -> None:
    tables = from_directory(folder, device="h200-sxm")
    assert tables.tables["gemm"]["latency_s"].tolist() == pytest.approx([3.5e-6])
    assert tables.device == "h200-sxm"


def test_only_decoding_attention_is_kept(folder: Path) -> None:
    assert from_directory(folder, device="h200-sxm").tables["attention"]["context"].tolist() == [2]


def test_a_collective_is_the_median_of_the_newest_version_without_a_host(folder: Path) -> None:
    columns = from_directory(folder, device="h200-sxm").tables["collective"]
    assert columns["latency_s"].tolist() == pytest.approx([3e-6])
    assert columns["num_bytes"].tolist() == [512]


def test_finding_a_scale_costs_the_measured_difference_more(folder: Path) -> None:
    columns = from_directory(folder, device="h200-sxm").tables["quantisation"]
    seconds = dict(zip(columns["scale"].tolist(), columns["latency_s"].tolist(), strict=True))
    assert seconds == pytest.approx({"given": 2e-6, "found": 2.5e-6})


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("h200_sxm,vllm,0.24.0,bf16,1,512,512,fast", r"line 4: latency_us is 'fast'"),
        ("h200_sxm,vllm,0.24.0,bf16,1,512,512,nan", r"line 4: latency_us is 'nan'"),
        ("h200_sxm,vllm,0.24.0,bf16,1,512,512,-1", r"line 4: latency_us is '-1'"),
        ("h200_sxm,vllm,0.24.0,bf16,0,512,512,3", r"line 4: m is '0'; expected a positive integer"),
        ("h200_sxm,vllm,0.24.0,,1,512,512,3", r"line 4: dtype is empty"),
        ("h200_sxm,vllm", r"line 4: 2 columns; version is missing"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(folder: Path, row: str, complaint: str) -> None:
    with (folder / "gemm.csv").open("a") as file:
        file.write(row + "\n")
    with pytest.raises(ValueError, match=complaint) as caught:
        from_directory(folder, device="h200-sxm")
    assert "gemm.csv" in str(caught.value)


def test_a_missing_column_is_named(folder: Path) -> None:
    _write(folder, "gemm", "system,framework,version,dtype,m,n,latency_us", "h200_sxm,vllm,0.24.0,bf16,1,512,3")
    with pytest.raises(ValueError, match=r"gemm.csv, line 1: column k is missing"):
        from_directory(folder, device="h200-sxm")


def test_a_folder_without_the_device_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="no row has system 'b200'"):
        from_directory(folder, device="b200")
    with pytest.raises(ValueError, match="device is 'h300-sxm'"):
        from_directory(folder, device="h300-sxm")
