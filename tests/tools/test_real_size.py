"""Engines that answer questions, ours among them."""

import sys
from pathlib import Path

import pytest

from swiftspec.models.spec import ModelSpec
from tools.real_size import random_model
from tools.real_size.comparison import QUESTIONS, compare
from tools.real_size.engine import Engine, EngineError, Question
from tools.real_size.peers import Start
from tools.real_size.random_model import write_random

pytestmark = pytest.mark.extra("engine")

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 4096,
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(random_model, "SHAPES", {"small": SMALL})
    write_random("small", tmp_path)
    return tmp_path


def test_a_random_model_has_the_published_shape(directory: Path) -> None:
    spec = ModelSpec.from_directory(directory)
    assert (spec.hidden_size, spec.num_layers, spec.vocab_size) == (64, 1, 4096)


def test_our_engine_answers_in_turn_with_itself(directory: Path) -> None:
    def start(dtype: str) -> Start:
        return Start(dtype, (sys.executable, "-m", "tools.real_size.ours", str(directory), dtype, "1"))

    results = list(compare([start("float32"), start("int8")], rounds=2))
    assert [result.question for result in results] == list(QUESTIONS)
    for result in results:
        assert all(seconds > 0.0 for each in result.seconds.values() for seconds in each)
        assert list(result.ratios()) == ["float32"]
        assert next(result.lines()).startswith(f"{result.question}: float32 ")


def test_an_engine_that_ends_says_why() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with Engine("broken", command) as engine, pytest.raises(EngineError, match="broken has ended: no such model"):
        engine.ask(Question(1, 4, 2))
