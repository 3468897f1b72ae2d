"""Shapes from the config.json of every model that can be planned."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftspec.models.checkpoint_format import stored_weights
from swiftspec.models.families import FAMILIES, LEFT_OUT, LayerConfig
from swiftspec.models.layer_parts import DenseNetwork, Experts, LatentAttention, Layer
from swiftspec.models.rotary import longest_context, read_rope
from swiftspec.models.sparse_spec import SparseSpec, experts_of
from swiftspec.models.spec import ModelSpec

_MOST_PARAMETERS = 10**15  # hundreds of times the largest
_TEXT = ("text_config", "llm_config", "language_config")  # InternVL's and DeepSeek-VL2's names are their own
# Language models that are those of another architecture.
_SAME_TEXT = {
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen2_5_vl_text": "qwen2",
}
_LATENT_HEAD_DIM = 128  # of a dense layer beside one of latent attention, as published heads have


def read_spec(directory: Path) -> ModelSpec:
    """Shape of a model that may be sparse. ValueError names directory, field and value of what does not fit."""
    values = LayerConfig.read(directory).values
    spec = spec_from_config(values, source=str(directory))
    return dataclasses.replace(spec, stored=stored_weights(directory, values, spec))


def spec_from_config(values: Mapping[str, Any], *, source: str) -> ModelSpec:
    """The same from the values of a config.json; `source` names their origin in errors."""
    config = LayerConfig(Path(source), _text_part(values))
    config.refuse_unplanned()
    if config.kind in FAMILIES:
        spec = _of_family(config)
    else:
        spec = ModelSpec.from_config(config.values, source=source, runs=False)
        windows = config.windows()
        spec = SparseSpec.of_alike(spec, windows) if spec.experts or any(windows) else spec
    if spec.num_parameters > _MOST_PARAMETERS:
        raise ValueError(
            f"{source}: config.json describes a model of {spec.num_parameters:.3g} parameters; "
            f"expected at most {_MOST_PARAMETERS:.0e}"
        )
    return spec


def _text_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of the language model, in a model that reads images as well, and those that its file leaves out."""
    text, shared = next((values[field] for field in _TEXT if isinstance(values.get(field), dict)), None), {}
    if text is None:
        text = values
    elif "tie_word_embeddings" in values:
        shared = {"tie_word_embeddings": values["tie_word_embeddings"]}
    kind = text.get("model_type")
    if not isinstance(kind, str):
        return {**shared, **text}
    return {**LEFT_OUT.get(kind, {}), **shared, **text, "model_type": _SAME_TEXT.get(kind, kind)}


def _of_family(config: LayerConfig) -> ModelSpec:
    """A model of one of `FAMILIES`, dense if all layers are alike and as those of dense models that run."""
    layers = config.layers()
    heads = config.integer("num_attention_heads")
    latent = any(isinstance(layer.attention, LatentAttention) for layer in layers)
    theta, scaling = read_rope(config)
    is_gemma = config.kind == "gemma3_text"  # whose stated context is the stretched one
    spec = ModelSpec(
        architecture=config.kind,
        hidden_size=config.integer("hidden_size"),
        intermediate_size=_active_size(layers),
        num_layers=len(layers),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=_LATENT_HEAD_DIM if latent else config.integer("head_dim", config.integer("hidden_size") // heads),
        vocab_size=config.integer("vocab_size"),
        max_position=longest_context(config, None if is_gemma else scaling),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=False,
        output_bias=False,
        qk_norm=False,
        eos_token_ids=config.eos_token_ids(),
        num_mtp_layers=config.count("num_nextn_predict_layers") or config.count("mtp_num_hidden_layers"),
        experts=experts_of(layers),
    )
    found = SparseSpec.with_layers(spec, layers)
    return spec if found == SparseSpec.of_alike(spec) and not spec.experts else found


def _active_size(layers: tuple[Layer, ...]) -> int:
    """Width that computes one token: of the widest dense layer, or of all its experts together."""
    networks = {layer.feed_forward for layer in layers}
    dense = [network.size for network in networks if isinstance(network, DenseNetwork)]
    of_experts = (part.num_active * part.size + part.shared_size for part in networks if isinstance(part, Experts))
    return max(dense or of_experts)
