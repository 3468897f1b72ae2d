import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.models.inflation import Inflation
from swiftspec.models.rotary import RopeScaling
from swiftspec.models.spec import ModelSpec, dtype_bytes, model_directory

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 896,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
LLAMA3_SCALING = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def read(directory: Path, **changes: Any) -> ModelSpec:
    """Spec of the config above with fields changed; None leaves a field out."""
    config = {key: value for key, value in (LLAMA | changes).items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    return ModelSpec.from_directory(directory)


def test_llama_config_is_read(directory: Path) -> None:
    assert read(directory) == ModelSpec(
        architecture="llama",
        hidden_size=256,
        intermediate_size=896,
        num_layers=8,
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        vocab_size=4096,
        max_position=2048,
        rms_norm_eps=1e-5,
        rope_theta=50000.0,
        rope_scaling=None,
        tie_word_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        qk_norm=False,
        eos_token_ids=(2,),
    )


def test_derived_sizes(directory: Path) -> None:
    spec = read(directory)
    layer = 256 * (256 + 128 + 128) + 256 * 256 + 3 * 256 * 896 + 2 * 256
    assert spec.num_parameters == 8 * layer + 4096 * 256 + 256
    assert read(directory, tie_word_embeddings=False).num_parameters == spec.num_parameters + 4096 * 256
    assert spec.kv_bytes_per_token("bf16") == 8 * 2 * 2 * 64 * 2
    assert spec.group_size == 2


def test_unknown_dtype_is_named() -> None:
    with pytest.raises(ValueError, match="dtype is 'int4'"):
        dtype_bytes("int4")


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"num_key_value_heads": None}, "num_kv_heads", 4),
        ({"head_dim": 32}, "head_dim", 32),
        ({"attention_bias": True}, "qkv_bias", True),
        ({"attention_bias": True}, "output_bias", True),
        ({"model_type": None}, "architecture", "llama"),
        ({"model_type": "qwen2"}, "qkv_bias", True),
        ({"model_type": "qwen2"}, "output_bias", False),
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}, "architecture", "qwen2"),
        ({"model_type": "qwen3"}, "qk_norm", True),
        ({"model_type": "qwen3"}, "head_dim", 128),
        ({"model_type": "qwen3", "layer_types": ["full_attention"] * 8}, "num_layers", 8),
        ({"model_type": "mistral", "sliding_window": None, "layer_types": ["full_attention"] * 8}, "head_dim", 64),
        ({"eos_token_id": [2, 5]}, "eos_token_ids", (2, 5)),
        ({"eos_token_id": None}, "eos_token_ids", ()),
        ({"rope_theta": None}, "rope_theta", 10000.0),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 3e5}}, "rope_theta", 3e5),
        ({"rope_scaling": {"type": "default"}}, "rope_scaling", None),
    ],
)
def test_field_is_read(directory: Path, changes: dict[str, Any], field: str, value: object) -> None:
    assert getattr(read(directory, **changes), field) == value


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3_SCALING}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3_SCALING}},
    ],
    ids=["transformers-4", "transformers-5"],
)
def test_llama3_rope_is_read_in_both_layouts(directory: Path, changes: dict[str, Any]) -> None:
    spec = read(directory, **changes)
    assert spec.rope_theta == 5e5
    assert spec.rope_scaling == RopeScaling(
        kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt_oss"}, "model_type is 'gpt_oss'; expected one of llama.* can be planned for, but not run"),
        ({"model_type": None, "architectures": ["GPT2LMHeadModel"]}, "model_type is 'gpt2lmheadmodel'"),
        ({"model_type": None, "architectures": None}, "model_type is None"),
        ({"hidden_size": None}, "hidden_size is None; expected a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"rms_norm_eps": -1.0}, r"rms_norm_eps is -1.0; expected a positive number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3; expected a divisor of the 4"),
        ({"head_dim": 33}, "head_dim is 33; expected an even number"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected 'silu'"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type is 'longrope'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is None"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\]; expected an object"),
        ({"model_type": "mistral"}, "sliding_window is left out, which means 4096"),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True}, "sliding_window is 64"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "expected 'full_attention' in every layer"),
    ],
)
def test_unsupported_config_is_one_sentence_with_field_and_value(
    directory: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        read(directory, **changes)
    assert str(directory) in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_config_is_named(directory: Path) -> None:
    with pytest.raises(ValueError, match=r"config.json: cannot be read \(No such file"):
        ModelSpec.from_directory(directory)


@pytest.mark.parametrize(("text", "message"), [("{", "config.json: not a JSON document"), ("[]", "holds list")])
def test_malformed_config_is_named(directory: Path, text: str, message: str) -> None:
    (directory / "config.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        ModelSpec.from_directory(directory)


def test_demo_models_are_those_shipped_with_the_package(tmp_path: Path) -> None:
    package = Path(model_directory.__code__.co_filename).parents[1]
    with pytest.raises(ValueError, match=str(package / "demo" / "nothing")):
        model_directory("demo/nothing")
    assert model_directory(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="there is no directory"):
        model_directory(tmp_path / "absent")


def test_inflation_is_parsed() -> None:
    assert Inflation.parse("layers=24, hidden=1024") == Inflation(layers=24, hidden=1024)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("depth=3", "'depth=3' is not KEY=NUMBER with a key of layers, hidden, heads, intermediate"),
        ("layers", "'layers' is not KEY=NUMBER"),
        ("", "'' is not KEY=NUMBER"),
        ("layers=two", "layers is 'two'; expected a positive integer"),
        ("hidden=-8", "hidden is '-8'"),
        ("heads=0", "heads is '0'"),
        ("layers=2,layers=3", "layers is given twice"),
    ],
)
def test_malformed_inflation_names_key_and_value(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Inflation.parse(text)


def test_inflation_out_of_range_is_named() -> None:
    with pytest.raises(ValueError, match="inflation: hidden is 0"):
        Inflation(hidden=0)


def test_hidden_alone_scales_heads_and_neurons(directory: Path) -> None:
    spec = read(directory)
    large = Inflation(layers=24, hidden=1024).inflated(spec)
    assert large == dataclasses.replace(
        spec,
        num_layers=24,
        hidden_size=1024,
        num_heads=16,
        num_kv_heads=8,
        intermediate_size=3584,
        rms_norm_eps=1e-5 / 4,
    )


def test_heads_grow_in_whole_groups(directory: Path) -> None:
    large = Inflation(hidden=300).inflated(read(directory))
    assert (large.num_heads, large.num_kv_heads) == (6, 3)
    assert large.intermediate_size == 1050


def test_positions_alone_change_nothing_else(directory: Path) -> None:
    spec = read(directory)
    longer = Inflation.parse(f"positions={4 * spec.max_position}").inflated(spec)
    assert longer == dataclasses.replace(spec, max_position=4 * spec.max_position)


def test_depth_alone_changes_nothing_else(directory: Path) -> None:
    spec = read(directory)
    assert Inflation(layers=9).inflated(spec) == dataclasses.replace(spec, num_layers=9)


@pytest.mark.parametrize(
    ("inflation", "message"),
    [
        (Inflation(layers=7), "layers is 7; expected at least the model's own 8"),
        (Inflation(hidden=128), "hidden is 128; expected at least the model's own 256"),
        (Inflation(heads=2), "heads is 2; expected at least the model's own 4"),
        (Inflation(heads=7), "heads is 7; expected a multiple of the group size 2"),
        (Inflation(intermediate=8), "intermediate is 8; expected at least the model's own 896"),
        (Inflation(positions=8), "positions is 8; expected at least the model's own"),
    ],
)
def test_inflation_that_would_shrink_or_split_is_refused(directory: Path, inflation: Inflation, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inflation.inflated(read(directory))
