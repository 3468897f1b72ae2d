"""`swiftspec list`."""

import json
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.devices import DEVICES
from swiftspec.engines import ENGINES
from swiftspec.models.published import known_model, model_names
from swiftspec.policies import POLICIES


def rows(text: str) -> dict[str, list[str]]:
    """Words of each line by the first."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


def test_every_model_is_listed_with_what_a_pair_has_to_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "models", "--json", str(tmp_path / "models.json")]) == 0
    text = capsys.readouterr().out
    listed = rows(text)
    assert set(model_names()) <= set(listed)
    assert listed["llama-3.3-70b"] == ["llama-3", "70.6", "80", "131072", "llama-3.2-1b"]
    assert listed["llama-3.2-3b"][-1] == "-"
    assert max(map(len, text.splitlines())) <= 100
    found = {model["name"]: model for model in json.loads((tmp_path / "models.json").read_text())["models"]}
    assert list(found) == model_names()
    assert found["qwen2-72b"]["vocabulary"] == known_model("qwen2-72b").vocabulary
    assert found["qwen3-32b"]["acceptance"]["qwen3-4b"]  # data sets


def test_every_device_is_listed_with_the_engines_that_were_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "devices", "--json", str(tmp_path / "devices.json")]) == 0
    listed = rows(capsys.readouterr().out)
    assert set(DEVICES) <= set(listed)
    assert listed["h200-sxm"][-3:] == ["sglang,", "trtllm,", "vllm"]
    found = {device["name"]: device for device in json.loads((tmp_path / "devices.json").read_text())["devices"]}
    assert list(found) == list(DEVICES)
    assert found["b200"]["memory_bandwidth_Bps"] == DEVICES["b200"].memory_bandwidth_Bps


def test_every_policy_is_listed_with_its_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "policies", "--json", str(tmp_path / "policies.json")]) == 0
    text = capsys.readouterr().out
    assert rows(text)["serial_chain"] == ["co-located", "built", "in", "num_draft_tokens"]
    assert max(map(len, text.splitlines())) <= 100
    listed = json.loads((tmp_path / "policies.json").read_text())["policies"]
    assert [policy["name"] for policy in listed][: len(POLICIES)] == list(POLICIES)
    assert next(policy for policy in listed if policy["name"] == "serial_chain") == {
        "name": "serial_chain",
        "layout": "co-located",
        "package": None,
        "shape": {"num_draft_tokens": 4},
    }


def test_every_engine_is_listed_with_its_limits_and_methods(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "engines", "--json", str(tmp_path / "engines.json")]) == 0
    text = capsys.readouterr().out
    assert set(ENGINES) <= set(rows(text))
    assert max(map(len, text.splitlines())) <= 100
    found = {engine["name"]: engine for engine in json.loads((tmp_path / "engines.json").read_text())["engines"]}
    assert list(found) == list(ENGINES)
    assert found["vllm"]["step_tokens"] == ENGINES["vllm"].large_limits.step_tokens


def test_a_list_of_something_else_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "plans"]) == 2
    said = capsys.readouterr().err
    assert "'plans'" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("verb", ["models", "devices", "policies"])
def test_an_old_verb_is_hidden_and_says_its_new_name(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert f"\n  {verb} " not in capsys.readouterr().out
    assert main(["list", verb]) == 0
    text = capsys.readouterr().out
    assert main([verb]) == 0
    assert capsys.readouterr() == (text, f"swiftspec: `swiftspec {verb}` is now `swiftspec list {verb}`\n")


@pytest.mark.parametrize("what", ["models", "devices", "policies", "engines"])
def test_json_that_cannot_be_written(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", what, "--json", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"swiftspec: error: --json is {tmp_path}, ")
