"""Drafts that do not fit, from the command line: one sentence naming file, field and value, exit code 2."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.engine.model.models import head_of
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import model_directory
from swiftspec.policies.effects import Role
from tests.cli import samples

pytestmark = pytest.mark.extra("engine")

Fails = Callable[..., str]

# What is wrong with a copy of a bundled draft's config.json, and the sentence.
WRONG: dict[str, tuple[str, dict[str, object], str]] = {
    "hidden size": ("demo/head", {"target_hidden_size": 128}, "target_hidden_size is 128; expected 256, the target's"),
    "vocabulary": ("demo/head", {"vocab_size": 99}, "vocab_size is 99; expected 4096, the target's vocabulary size"),
    "layers": (
        "demo/head",
        {"eagle_aux_hidden_state_layer_ids": [1, 2, 77]},
        "eagle_aux_hidden_state_layer_ids has 77; the target has 8 layers",
    ),
    "layers of MTP": (
        "demo/target",
        {"num_nextn_predict_layers": 1, "num_hidden_layers": 5},
        "num_hidden_layers is 5; expected 8, the target's number of layers",
    ),
    "block without a mask": (
        "demo/head",
        {"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [1, 3]}},
        "mask_token_id is None; expected a token id below 4096",
    ),
    "block's layers": (
        "demo/head",
        {
            "architectures": ["DFlashDraftModel"],
            "block_size": 8,
            "dflash_config": {"target_layer_ids": [1, 30], "mask_token_id": 3},
        },
        "target_layer_ids has 30; the target has 8 layers",
    ),
    "mask beyond the vocabulary": ("demo/parallel_draft", {"pard_token": 4096}, "pard_token is 4096; expected a token"),
}


@pytest.fixture
def wrong(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A directory with that config.json, and the sentence."""
    name, changes, sentence = WRONG[request.param]
    return changed(tmp_path / "draft", name, **changes), sentence


def changed(folder: Path, name: str, **fields: object) -> Path:
    folder.mkdir()
    original = model_directory(name)
    config = json.loads((original / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    (folder / "tokenizer.json").write_bytes((model_directory("demo/target") / "tokenizer.json").read_bytes())
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n')
    return path


@pytest.mark.parametrize("verb", ["trace", "profile", "plan", "plan at loads"])
@pytest.mark.parametrize("wrong", WRONG, indirect=True)
def test_a_draft_for_another_target_is_one_sentence(
    fails: Fails, wrong: tuple[Path, str], prompts: Path, tmp_path: Path, verb: str
) -> None:
    folder, sentence = wrong
    elsewhere = ["--device", "h100", "--devices", "1"]
    flags: dict[str, list[object]] = {
        "trace": ["--prompts", prompts, "--out", tmp_path / "out"],
        "profile": ["--out", tmp_path / "out"],
        "plan": [*elsewhere, "--out", tmp_path / "out"],
        "plan at loads": [*elsewhere, "--jobs", "1", "--load", "closed:1,4"],
    }
    said = fails(verb.split()[0], "--target", "demo/target", "--draft", folder, *flags[verb])
    assert str(folder) in said
    assert sentence in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrong", WRONG, indirect=True)
def test_a_plan_whose_draft_was_exchanged_does_not_run(fails: Fails, wrong: tuple[Path, str], tmp_path: Path) -> None:
    folder, sentence = wrong
    target, draft = ModelRef(model="demo/target", dtype="float32"), ModelRef(model=str(folder), dtype="float32")
    samples.trace(target=target, draft=draft).save(tmp_path / "trace.npz")
    made = samples.plan(target=target, draft=draft, folder=tmp_path)
    shared = samples.candidate("serial_chain", tokens_per_s=90.0, shape={"num_draft_tokens": 2})
    chosen = shared.model_copy(update={"policy": "head_chain"})
    made.model_copy(update={"chosen": chosen}).save(tmp_path / "plan.json")
    said = fails("run", "--plan", tmp_path / "plan.json", "--prompt", "x")
    assert sentence in said


def test_a_draft_without_a_mask_token_is_not_parallel(fails: Fails, tmp_path: Path) -> None:
    folder = changed(tmp_path / "draft", "demo/parallel_draft", pard_token=None)
    arguments = [
        "--device",
        "h100",
        "--devices",
        "1",
        "--acceptance",
        "0.7",
        "--policy",
        "parallel_chain",
        "--jobs",
        "1",
    ]
    said = fails("plan", "--target", "demo/target", "--draft", folder, *arguments, "--out", tmp_path / "plan.json")
    assert "parallel_chain: not with a serial draft, without a mask token (pard_token in config.json)" in said


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"device": "cuda"}, "on CPUs only; the device is cuda"),
        ({"alone": True}, "reads the target's hidden states; expected a co-located policy"),
        ({"inflate": "layers=4"}, "demo/head is a head; it cannot be inflated to layers=4"),
    ],
)
def test_an_engine_without_features_refuses_a_head(changes: dict[str, str], sentence: str) -> None:
    references = {Role.DRAFT: ModelRef(model="demo/head", dtype="float32", inflate=changes.get("inflate"))}
    if "alone" not in changes:
        references[Role.TARGET] = ModelRef(model="demo/target", dtype="float32")
    with pytest.raises(ValueError, match=sentence):
        head_of(references, device=changes.get("device", "cpu"))


def test_a_head_has_no_devices_of_its_own(fails: Fails, tmp_path: Path) -> None:
    arguments = ["--device", "h100", "--devices", "2", "--policy", "swiftspec", "--jobs", "1"]
    said = fails("plan", "--target", "qwen3-14b", "--draft", "eagle3", *arguments, "--out", tmp_path / "plan.json")
    assert "swiftspec: not with a head draft" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--load", "closed:1,x"], "--load is 'closed:1,x'; expected numbers of clients"),
        (["--load", "closed:0,4"], "--load is 0; expected 1 to 256"),
        (
            ["--load", "closed:1,4", "--out", "plan.json"],
            "--out is plan.json; --load closed:1,4 compares drafts and makes",
        ),
        (["--draft", "eagle3", "--draft", "eagle3"], "--draft is eagle3 twice"),
        (["--draft", "eagle3", "--acceptance", "0.8", "--acceptance", "0.7"], "--acceptance is given 2 times"),
        (["--draft", "medusa"], "--draft is 'medusa'"),
        (["--devices", "99"], "--devices is 99"),
    ],
)
def test_a_comparison_refuses_in_a_sentence(fails: Fails, arguments: list[str], sentence: str) -> None:
    usual = [] if "--load" in arguments else ["--load", "closed:1,4"]
    assert sentence in fails("plan", "--target", "qwen3-14b", "--device", "h100", *arguments, *usual)
