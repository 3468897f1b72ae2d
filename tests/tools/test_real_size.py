"""Engines that answer questions, ours among them."""

import sys
from pathlib import Path

import pytest

from swiftspec.models.spec import ModelSpec, model_directory
from tools.real_size import random_model
from tools.real_size.comparison import QUESTIONS, compare
from tools.real_size.engine import Engine, EngineError, Question
from tools.real_size.peers import Start
from tools.real_size.random_model import write_random
from tools.real_size.speculation import compare as speeds_of
from tools.real_size.speculation import fastest, write_prompts

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


def test_our_speculation_answers_with_a_draft_and_without(tmp_path: Path) -> None:
    prompts = write_prompts(tmp_path, Path(model_directory("demo/target")))
    for count in (0, 3):
        worker = (sys.executable, "-m", "tools.real_size.ours_speculation", "demo/target", "demo/draft", "float32")
        assert fastest(Start("ours", (*worker, str(prompts), "8", str(count)))) > 0.0


def test_of_each_engine_the_best_number_of_draft_tokens_counts() -> None:
    def start(name: str, speed: float) -> Start:
        said = f"""print('{{"tokens_per_s": {speed}}}\\n' * 3)"""
        return Start(name, (sys.executable, "-c", said))

    speeds = {"ours": (10.0, 40.0, 30.0, 20.0), "theirs": (16.0, 10.0, 20.0, 8.0)}
    lines = list(speeds_of([[start(name, one) for one in each] for name, each in speeds.items()], rounds=1))
    assert lines == [
        "ours: 40.0 tokens/s with 3 draft tokens; ours 1.00 times",
        "theirs: 20.0 tokens/s with 4 draft tokens; ours 2.00 times",
    ]
