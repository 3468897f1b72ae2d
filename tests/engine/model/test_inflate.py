import json
import shutil
from pathlib import Path

import pytest
import torch

from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.weights.checkpoint import load_weights
from swiftspec.engine.model.weights.inflate import inflate_weights, write_inflated
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import ForwardKind
from tests.engine.checkpoints import VARIANTS, reference_logits, write_checkpoint
from tests.engine.forwards import forward, prefill

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = [5, 17, 2, 80, 41, 3, 3, 19, 60, 7, 33, 21]
INFLATIONS = {
    "depth": Inflation(layers=5),
    "width": Inflation(hidden=80),
    "heads": Inflation(heads=18),
    "neurons": Inflation(intermediate=100),
    "all": Inflation(layers=4, hidden=96, heads=12, intermediate=200),
}


def last_logits(decoder: CpuDecoder) -> torch.Tensor:
    return prefill(decoder, TOKENS, decoder.new_cache(32))


@pytest.mark.parametrize("inflation", INFLATIONS.values(), ids=INFLATIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_small_model(variant: str, inflation: Inflation, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, variant)
    expected = last_logits(CpuDecoder(tmp_path))
    inflated = CpuDecoder(tmp_path, inflation=inflation)
    assert inflated.spec.num_parameters > CpuDecoder(tmp_path).spec.num_parameters
    torch.testing.assert_close(last_logits(inflated), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", ["llama-tied", "qwen2", "qwen3", "llama-bias"])
def test_only_projections_back_to_the_residual_stream_are_zero(variant: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, variant)
    spec = ModelSpec.from_directory(tmp_path)
    weights = inflate_weights(load_weights(tmp_path, spec), spec, INFLATIONS["all"], seed=0)
    for name, weight in weights.items():
        share_of_zeros = float((weight == 0).float().mean())
        may_have_zeros = any(part in name for part in ("o_proj", "down_proj", "embed_tokens"))
        assert may_have_zeros or share_of_zeros < 0.01, name
        if name.startswith("model.layers.2.") and ("o_proj" in name or "down_proj" in name):
            assert share_of_zeros == 1.0, name


def test_half_of_the_layers_say_what_half_of_the_small_models_do(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")

    def halfway(decoder: CpuDecoder) -> torch.Tensor:
        cache = decoder.new_cache(32)
        prefill(decoder, TOKENS[:-1], cache)
        return forward(decoder, TOKENS[-1:], [len(TOKENS) - 1], [0], cache, kind=ForwardKind.FIRST_HALF)

    inflated = CpuDecoder(tmp_path, inflation=Inflation(layers=6, hidden=96))
    torch.testing.assert_close(halfway(inflated), halfway(CpuDecoder(tmp_path)), rtol=0, atol=1e-4)


def test_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "llama")
    spec = ModelSpec.from_directory(tmp_path)
    original = load_weights(tmp_path, spec)
    first, again, other = (inflate_weights(original, spec, INFLATIONS["all"], seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in reversed(list(first)))
    assert not torch.equal(first["model.layers.2.mlp.up_proj.weight"], other["model.layers.2.mlp.up_proj.weight"])


@pytest.mark.parametrize("variant", ["llama", "llama-tied", "llama3-rope", "qwen2", "qwen3"])
def test_written_directory_gives_the_same_logits_in_transformers(variant: str, tmp_path: Path) -> None:
    source, out = write_checkpoint(tmp_path / "small", variant), tmp_path / "deep" / "large"
    write_inflated(source, INFLATIONS["all"], out, dtype=torch.float32)
    expected = reference_logits(source, TOKENS)
    torch.testing.assert_close(reference_logits(out, TOKENS), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(last_logits(CpuDecoder(out)), expected[-1], rtol=0, atol=1e-4)
    assert ModelSpec.from_directory(out) == INFLATIONS["all"].inflated(ModelSpec.from_directory(source))


def test_written_directory_has_the_dtype_and_the_tokenizer(tmp_path: Path) -> None:
    source, out = write_checkpoint(tmp_path / "small", "llama"), tmp_path / "large"
    (source / "tokenizer.json").write_text('{"version": "1.0"}')
    out.mkdir()  # an empty directory may be filled
    write_inflated(source, Inflation(layers=4), out, dtype=torch.bfloat16)
    assert (out / "tokenizer.json").read_text() == '{"version": "1.0"}'
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_weights(out, ModelSpec.from_directory(out))["model.norm.weight"].dtype == torch.bfloat16


def test_shape_that_transformers_would_not_load_is_refused(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "small", "llama")
    with pytest.raises(ValueError, match="heads is 18; expected a divisor of hidden 64"):
        write_inflated(source, Inflation(hidden=64, heads=18), tmp_path / "large", dtype=torch.float32)
    assert not (tmp_path / "large").exists()


def test_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    source, out = write_checkpoint(tmp_path / "small", "llama"), tmp_path / "large"
    out.mkdir()
    (out / "precious").write_text("data")
    with pytest.raises(ValueError, match="large: already exists and is not an empty directory"):
        write_inflated(source, Inflation(layers=4), out, dtype=torch.float32)
    assert [path.name for path in out.iterdir()] == ["precious"]


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint(tmp_path / "small", "llama")

    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("swiftspec.engine.model.weights.inflate.save_file", full_disk)
    with pytest.raises(ValueError, match="large: cannot write the inflated model: No space left on device"):
        write_inflated(source, Inflation(layers=4), tmp_path / "large", dtype=torch.float32)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


@pytest.mark.parametrize(
    ("inflation", "message"),
    [
        (Inflation(layers=10**9), "the model of layers=1000000000 needs .* GB of memory; this machine has"),
        (Inflation(hidden=4_800_000), "the model of hidden=4800000 needs .* GB of memory; this machine has"),
    ],
)
def test_a_model_beyond_memory_is_refused_before_it_is_made(tmp_path: Path, inflation: Inflation, message: str) -> None:
    source = write_checkpoint(tmp_path / "small", "llama")
    with pytest.raises(ValueError, match=message):
        write_inflated(source, inflation, tmp_path / "out", dtype=torch.float32)
    with pytest.raises(ValueError, match=message.replace("the model of", "the model inflated to")):
        CpuDecoder(source, inflation=inflation)
    assert not (tmp_path / "out").exists()


def test_a_model_beyond_the_disk_is_refused_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_checkpoint(tmp_path / "small", "llama")
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(ValueError, match=r"the model of layers=5 has \S+ GB; there are 1e-06 GB free for"):
        write_inflated(source, Inflation(layers=5), tmp_path / "out", dtype=torch.float32)
    assert not (tmp_path / "out").exists()


def test_more_layers_than_can_be_named_are_refused(tmp_path: Path) -> None:
    spec = ModelSpec.from_directory(write_checkpoint(tmp_path, "llama"))
    with pytest.raises(ValueError, match="layers is 1000000000; expected at most 100000"):
        inflate_weights({}, spec, Inflation(layers=10**9), seed=0, device="meta")
