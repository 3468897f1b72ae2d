"""Commands of engines that start on this machine."""

from pathlib import Path

import pytest

from swiftspec.engines import engine_named
from swiftspec.errors import FieldError
from swiftspec.export.command import local_arguments
from swiftspec.export.nearest import model_argument

WRITTEN = ("vllm", "serve", "/models/target", "--dtype", "float32")


def test_a_command_listens_here_and_the_users_options_come_last() -> None:
    found = local_arguments(
        engine_named("vllm"), WRITTEN, target="/models/target", device="cuda", port=8123, options=("--dtype", "half")
    )
    assert found == (*WRITTEN, "--host", "127.0.0.1", "--port", "8123", "--dtype", "half")


def test_a_python_of_its_own_starts_the_same_server() -> None:
    found = local_arguments(
        engine_named("vllm"), WRITTEN, target="/models/target", device="cpu", port=1, python="/env/bin/python"
    )
    assert found[:5] == ("/env/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/target")
    assert found[5:8] == ("--dtype", "float32", "--enforce-eager")


def test_an_engine_that_is_no_python_program_has_none() -> None:
    with pytest.raises(FieldError, match=r"python is /env/bin/python; llama.cpp is no Python program"):
        local_arguments(
            engine_named("llamacpp"),
            ("llama-server", "-m", "t"),
            target="t",
            device="cpu",
            port=1,
            python="/env/bin/python",
        )


def test_an_engine_that_reads_files_of_its_own_is_told_the_one_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    llamacpp = engine_named("llamacpp")
    assert model_argument(str(tmp_path), llamacpp) == str(tmp_path)
    (tmp_path / "target.gguf").touch()
    assert model_argument(str(tmp_path), llamacpp) == str(tmp_path / "target.gguf")
    assert model_argument(str(tmp_path), engine_named("vllm")) == str(tmp_path)
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ValueError, match=r"has 2 files of \.gguf; expected one"):
        model_argument(str(tmp_path), llamacpp)
