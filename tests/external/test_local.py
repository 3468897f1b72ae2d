"""Commands of engines that start on this machine."""

from pathlib import Path

import pytest

from swiftspec.engines import engine_named
from swiftspec.errors import FieldError
from swiftspec.export.nearest import model_argument
from swiftspec.external.engine import EngineHere

WRITTEN = ("vllm", "serve", "/models/target", "--dtype", "float32")


def test_a_command_listens_here_and_the_users_options_come_last() -> None:
    here = EngineHere(engine=engine_named("vllm"), device="cuda", options=("--dtype", "half"))
    found = here.arguments(WRITTEN, target="/models/target", port=8123)
    assert found == (*WRITTEN, "--host", "127.0.0.1", "--port", "8123", "--dtype", "half")


def test_a_python_of_its_own_starts_the_same_server() -> None:
    here = EngineHere(engine=engine_named("vllm"), python="/env/bin/python")
    found = here.arguments(WRITTEN, target="/models/target", port=1)
    assert found[:5] == ("/env/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/target")
    assert found[5:8] == ("--dtype", "float32", "--enforce-eager")


def test_an_engine_that_is_no_python_program_has_none() -> None:
    here = EngineHere(engine=engine_named("llamacpp"), python="/env/bin/python")
    with pytest.raises(FieldError, match=r"python is /env/bin/python; llama.cpp is no Python program"):
        here.arguments(("llama-server", "-m", "t"), target="t", port=1)


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
