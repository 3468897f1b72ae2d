"""`swiftspec import`: op tables from other people's files."""

import json
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.costmodel.op_tables import OpTables

FILES = {
    "gemm": (
        "system,framework,version,dtype,m,n,k,latency_us",
        "h200_sxm,vllm,0.24.0,bf16,1,512,512,3.5",
    ),
    "attention": (
        "system,framework,version,kind,kv_dtype,batch,kv_len,heads,kv_heads,head_dim,latency_us",
        "h200_sxm,vllm,0.24.0,generation,bf16,1,2,8,1,128,11",
    ),
    "all_reduce": (
        "system,op,implementation,version,mode,dtype,gpus,message_bytes,latency_us",
        "h200_sxm,all_reduce,nccl,2.29.2,stream,fp16,2,512,6",
    ),
    "elementwise": ("system,framework,version,op,m,k,latency_us",),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    directory = tmp_path / "tables"
    directory.mkdir()
    for name, lines in FILES.items():
        (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return directory


def test_a_folder_becomes_a_file_of_op_tables(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, result = tmp_path / "ops.npz", tmp_path / "result.json"
    arguments = ["import", "--from", str(folder), "--device", "h200-sxm", "--out", str(out), "--json", str(result)]
    assert main(arguments) == 0
    assert OpTables.load(out).num_measurements == 3
    assert json.loads(result.read_text())["measurements"] == {
        "gemm": 1,
        "attention": 1,
        "collective": 1,
        "quantisation": 0,
        "experts": 0,
        "latent_attention": 0,
        "linear_attention": 0,
    }
    assert "vllm 0.24.0" in capsys.readouterr().out


def test_a_malformed_row_is_one_sentence_with_file_and_line(
    folder: Path, tmp_path: Path, fails: Callable[..., str]
) -> None:
    with (folder / "gemm.csv").open("a") as file:
        file.write("h200_sxm,vllm,0.24.0,bf16,1,512,512,quick\n")
    out = tmp_path / "ops.npz"
    sentence = fails("import", "--from", str(folder), "--device", "h200-sxm", "--out", str(out))
    assert f"{folder / 'gemm.csv'}, line 3: latency_us is 'quick'" in sentence
    assert not out.exists()


@pytest.mark.parametrize(
    ("device", "sentence"), [("h200-sxn", "did you mean h200-sxm"), ("l40s", "no row has system 'l40s'")]
)
def test_a_device_that_is_not_there_is_named(
    folder: Path, tmp_path: Path, fails: Callable[..., str], device: str, sentence: str
) -> None:
    assert sentence in fails("import", "--from", str(folder), "--device", device, "--out", str(tmp_path / "ops.npz"))


def test_a_package_that_is_not_installed_is_named(tmp_path: Path, fails: Callable[..., str]) -> None:
    try:
        version("aiconfigurator-core")
    except PackageNotFoundError:
        arguments = ("--device", "h200-sxm", "--out", str(tmp_path / "ops.npz"))
        sentence = fails("import", "--from", "aiconfigurator", *arguments)
        assert "aiconfigurator-core, which is not installed" in sentence
    else:
        pytest.skip("it is installed here")
