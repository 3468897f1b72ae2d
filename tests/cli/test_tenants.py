"""`swiftspec tenants`: what it prints and writes, and bad input."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from tests.studies.tenants.models import LAYER_BYTES, base_tensors, factors, fine_tuned, write_adapter, write_model

pytestmark = pytest.mark.extra("engine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tenants")
    base = write_model(folder / "base", base_tensors())
    fine_tuned(base, folder / "tuned", layers=(3,))
    write_adapter(folder / "adapter", factors())
    return folder


def directories(folder: Path) -> list[str]:
    return [str(folder / name) for name in ("base", "tuned", "adapter")]


def test_sharing_is_printed_and_written(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "zoo.json"
    flags = ("--memory-gib", "0.001", "--context", "32", "--max-running", "2", "--near", "0.9", "--json", str(out))
    assert main(["study", "tenants", *directories(folder), *flags]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "tuned 0.04 MB 0.01 MB - embedding, 0-2, head with all; 3 its own" in text
    assert "0.00 MB, rank 2 embedding, 0-2, head with all; 3 with base" in text
    assert "That is lossy" in text
    content = json.loads(out.read_text())
    base_bytes = sum(tensor.nbytes for tensor in base_tensors().values())
    assert [tenant["private_bytes"] for tenant in content["tenants"]] == [0, LAYER_BYTES, 1024]
    assert content["shared_bytes"] == base_bytes + LAYER_BYTES + 1024
    assert [each["part"] for each in content["near"]] == ["3"]
    kv_bytes = 2 * 2 * 4 * 8 * 2 * 32
    added = (LAYER_BYTES + 1024) / 2 + kv_bytes
    fitting = 1 + int((0.001 * 2**30 - base_bytes - kv_bytes) // added)
    assert content["fitting"]["shared"] == fitting > content["fitting"]["alone"]
    assert f"{fitting} shared" in text


def test_stdout_may_be_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "tenants", *directories(folder), "--json", "-"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["context"], content["fitting"], content["near"]) == (64, None, [])


@pytest.mark.parametrize(
    ("names", "flags", "sentence"),
    [
        (["base"], (), "tenants are 1; expected a base and at least one more"),
        (["base", "nowhere"], (), "there is no directory"),
        (["adapter", "base"], (), "config.json: cannot be read"),
        (["base", "tuned"], ("--json", "{base}/model.safetensors"), "expected another file"),
        (["base", "tuned"], ("--memory-gib", "0"), "--memory-gib is '0'; expected at least"),
    ],
)
def test_bad_input_is_one_sentence(
    names: list[str], flags: tuple[str, ...], sentence: str, folder: Path, fails: Callable[..., str]
) -> None:
    given = [flag.replace("{base}", str(folder / "base")) for flag in flags]
    assert sentence in fails("study", "tenants", *(str(folder / name) for name in names), *given)
