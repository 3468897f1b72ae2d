"""Shapes from the config.json of sparse models: one reader for each family of `model_type`."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swiftspec.models.checkpoint_format import stored_weights
from swiftspec.models.config_json import ConfigJson
from swiftspec.models.layer_parts import (
    Attention,
    DenseNetwork,
    Experts,
    FeedForward,
    GroupedAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
)
from swiftspec.models.rotary import longest_context, read_rope
from swiftspec.models.sparse_spec import SparseSpec, experts_of
from swiftspec.models.spec import ModelSpec

__all__ = ["read_spec", "spec_from_config"]

_WINDOW, _CHUNK = "sliding_attention", "chunked_attention"
_FULL, _LINEAR = "full_attention", "linear_attention"
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_MOST_LAYERS = 10_000  # a hundred times those of any model
_MOST_PARAMETERS = 10**15  # hundreds of times the largest
_TEXT = ("text_config", "llm_config", "language_config")  # InternVL's and DeepSeek-VL2's names are their own
# Language models that are those of another architecture.
_SAME_TEXT = {
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen2_5_vl_text": "qwen2",
}
# Transformers' defaults for fields that config.json files leave out.
_LEFT_OUT: Mapping[str, Mapping[str, int]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    }
}
_ALWAYS_WINDOWS = ("mistral", "mixtral")  # unless the window is null
_MISTRAL_WINDOW = 4096  # unless it is stated
_LATENT_HEAD_DIM = 128  # of a dense layer beside one of latent attention, as published heads have


def read_spec(directory: Path) -> ModelSpec:
    """Shape of a model that may be sparse. ValueError names directory, field and value of what does not fit."""
    values = _SparseConfig.read(directory).values
    spec = spec_from_config(values, source=str(directory))
    return dataclasses.replace(spec, stored=stored_weights(directory, values, spec))


def spec_from_config(values: Mapping[str, Any], *, source: str) -> ModelSpec:
    """The same from the values of a config.json; `source` names their origin in errors."""
    spec = _spec(values, source)
    if spec.num_parameters > _MOST_PARAMETERS:
        raise ValueError(
            f"{source}: config.json describes a model of {spec.num_parameters:.3g} parameters; "
            f"expected at most {_MOST_PARAMETERS:.0e}"
        )
    return spec


def _spec(values: Mapping[str, Any], source: str) -> ModelSpec:
    own = _text_part(values)
    kind = own.get("model_type")
    if isinstance(kind, str) and kind in _FAMILIES:
        return _SparseConfig(Path(source), own).spec(kind)
    spec = ModelSpec.from_config(own, source=source, runs=False)
    config = _SparseConfig(Path(source), own)
    if spec.experts is None and not config.may_have_windows(spec.architecture):
        return spec
    windows = [config.window(spec.architecture, index) for index in range(config.num_layers())]
    return SparseSpec.of_alike(spec, windows) if spec.experts or any(windows) else spec


def _text_part(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fields of the language model, in a model that reads images as well."""
    text = next((values[field] for field in _TEXT if isinstance(values.get(field), dict)), None)
    if text is None:
        return values
    kind = text.get("model_type")
    shared = {"tie_word_embeddings": values["tie_word_embeddings"]} if "tie_word_embeddings" in values else {}
    usual = _LEFT_OUT.get(kind, {}) if isinstance(kind, str) else {}
    return {**usual, **shared, **text, "model_type": _SAME_TEXT.get(kind, kind) if isinstance(kind, str) else kind}


class _SparseConfig(ConfigJson):
    """A config.json of a sparse model."""

    def spec(self, kind: str) -> SparseSpec:
        attention, feed_forward = _FAMILIES[kind]
        count = self.num_layers()
        layers = tuple(
            Layer(attention=attention(self, index), feed_forward=feed_forward(self, index)) for index in range(count)
        )
        heads = self.integer("num_attention_heads")
        latent = any(isinstance(layer.attention, LatentAttention) for layer in layers)
        theta, scaling = read_rope(self)
        is_gemma = kind == "gemma3_text"  # whose stated context is the stretched one
        own_dim = self.integer("hidden_size") // heads
        return SparseSpec(
            architecture=kind,
            hidden_size=self.integer("hidden_size"),
            intermediate_size=_active_size(layers),
            num_layers=count,
            num_heads=heads,
            num_kv_heads=self.integer("num_key_value_heads", heads),
            head_dim=_LATENT_HEAD_DIM if latent else self.integer("head_dim", own_dim),
            vocab_size=self.integer("vocab_size"),
            max_position=longest_context(self, None if is_gemma else scaling),
            rms_norm_eps=self.number("rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
            tie_word_embeddings=self.flag("tie_word_embeddings", is_gemma),
            qkv_bias=False,
            output_bias=False,
            qk_norm=False,
            eos_token_ids=self.eos_token_ids(),
            num_mtp_layers=self.count("num_nextn_predict_layers") or self.count("mtp_num_hidden_layers"),
            layers=layers,
            experts=experts_of(layers),
        )

    def num_layers(self) -> int:
        """Layers of a model whose layers are listed one by one."""
        return self.integer("num_hidden_layers", most=_MOST_LAYERS)

    def first(self, fields: tuple[str, ...]) -> int:
        """The integer of the first of these fields that is there."""
        return self.integer(next((field for field in fields if self.values.get(field) is not None), fields[0]))

    def layer_type(self, index: int) -> str:
        kinds, known = self.values.get("layer_types"), (_WINDOW, _CHUNK, _FULL, _LINEAR)
        if kinds is None:
            return _FULL
        if not isinstance(kinds, list) or len(kinds) <= index or kinds[index] not in known:
            raise self.fail("layer_types", kinds, f"one of {', '.join(known)} for every layer")
        return str(kinds[index])

    def may_have_windows(self, architecture: str) -> bool:
        """Whether some layers of a model of usual attention may read a window only."""
        if self.values.get("layer_types") is not None:
            return True
        default = _MISTRAL_WINDOW if architecture == "mistral" else None
        has_window = self.values.get("sliding_window", default) is not None
        return has_window and self.flag("use_sliding_window", architecture in _ALWAYS_WINDOWS)

    def window(self, architecture: str, index: int) -> int:
        """Latest tokens that a layer of such a model reads; 0 for all."""
        if self.values.get("layer_types") is not None:
            return self.integer("sliding_window") if self.layer_type(index) == _WINDOW else 0
        is_first = architecture not in _ALWAYS_WINDOWS and index < self.count("max_window_layers")
        if is_first or not self.may_have_windows(architecture):
            return 0
        return self.integer("sliding_window", _MISTRAL_WINDOW)


def _active_size(layers: tuple[Layer, ...]) -> int:
    """Width that computes one token: of a dense layer, or of all its experts together."""
    for layer in layers:
        if isinstance(layer.feed_forward, DenseNetwork):
            return layer.feed_forward.size
    experts = layers[0].feed_forward
    assert isinstance(experts, Experts), "no layer is dense"
    return experts.num_active * experts.size + experts.shared_size


def _grouped(config: _SparseConfig, index: int) -> GroupedAttention:
    heads = config.integer("num_attention_heads")
    window = config.integer("sliding_window") if config.layer_type(index) == _WINDOW else 0
    return GroupedAttention(
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", config.integer("hidden_size") // heads),
        window=window,
        norms_heads_together=config.values.get("qk_norm_type") == "per_layer",  # MiniMax-M2
    )


def _gemma(config: _SparseConfig, index: int) -> GroupedAttention:
    """Every sixth layer reads all tokens, the others a window, unless `layer_types` says otherwise."""
    if config.values.get("layer_types") is not None:
        return _grouped(config, index)
    heads = config.integer("num_attention_heads")
    pattern = config.integer("sliding_window_pattern", config.count("_sliding_window_pattern") or 6)
    return GroupedAttention(
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", 256),
        window=0 if (index + 1) % pattern == 0 else config.integer("sliding_window"),
    )


def _llama4(config: _SparseConfig, index: int) -> GroupedAttention:
    """Layers with positions read a chunk of the text, every fourth one, without, all of it."""
    interval = config.integer("no_rope_layer_interval", 4)
    listed = config.values.get("no_rope_layers") or [(layer + 1) % interval for layer in range(config.num_layers())]
    if not isinstance(listed, list) or len(listed) <= index:
        raise config.fail("no_rope_layers", listed, "a number for every layer")
    window = config.integer("attention_chunk_size") if listed[index] else 0
    return dataclasses.replace(_grouped(config, index), window=window)


def _llama4_network(config: _SparseConfig, index: int) -> FeedForward:
    """Experts in every layer, or in every second one."""
    if (index + 1) % config.integer("interleave_moe_layer_step", 1):
        return DenseNetwork(size=config.integer("intermediate_size_mlp"))
    size = config.integer("intermediate_size")
    total, active = config.integer("num_local_experts"), config.integer("num_experts_per_tok", 1)
    if active > total:
        raise config.fail("num_experts_per_tok", active, f"at most the {total} experts of num_local_experts")
    return Experts(num_experts=total, num_active=active, size=size, shared_size=size)


def _shares_indexer(config: _SparseConfig, index: int) -> bool:
    """Whether a layer reads the tokens that the indexer of an earlier one selected, as most of GLM-5.2's do."""
    kinds = config.values.get("indexer_types")
    if kinds is None:
        return False
    if not isinstance(kinds, list) or len(kinds) <= index or kinds[index] not in ("full", "shared"):
        raise config.fail("indexer_types", kinds, "full or shared for every layer")
    return bool(kinds[index] == "shared")


def _latent(config: _SparseConfig, index: int) -> LatentAttention:
    indexer = None
    if config.count("index_topk"):
        indexer = Indexer(
            num_heads=config.integer("index_n_heads"),
            head_dim=config.integer("index_head_dim"),
            num_tokens=config.integer("index_topk"),
            is_shared=_shares_indexer(config, index),
        )
    return LatentAttention(
        num_heads=config.integer("num_attention_heads"),
        query_rank=config.integer("q_lora_rank"),
        kv_rank=config.integer("kv_lora_rank"),
        plain_dim=config.integer("qk_nope_head_dim"),
        rotary_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        indexer=indexer,
    )


def _qwen_hybrid(config: _SparseConfig, index: int) -> Attention:
    """Gated delta nets, and gated attention in every few layers."""
    interval = config.integer("full_attention_interval", 4)
    if (index + 1) % interval == 0:
        heads = config.integer("num_attention_heads")
        return GroupedAttention(
            num_heads=heads,
            num_kv_heads=config.integer("num_key_value_heads", heads),
            head_dim=config.integer("head_dim", 256),
            is_gated=True,
        )
    return LinearAttention(
        kind="gdn",
        num_key_heads=config.integer("linear_num_key_heads"),
        num_value_heads=config.integer("linear_num_value_heads"),
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        convolution=config.integer("linear_conv_kernel_dim"),
    )


def _kimi_hybrid(config: _SparseConfig, index: int) -> Attention:
    """Kimi delta attention, and latent attention in the layers that are listed, counted from 1."""
    linear = config.values.get("linear_attn_config")
    listed = linear.get("full_attn_layers") if isinstance(linear, dict) else None
    if not isinstance(linear, dict) or not isinstance(listed, list) or len(listed) > config.num_layers():
        raise config.fail("linear_attn_config", linear, "an object with full_attn_layers, at most all of them")
    if index + 1 in listed:
        return _latent(config, index)
    own = _SparseConfig(config.directory, linear)
    heads, head_dim = own.integer("num_heads"), own.integer("head_dim")
    return LinearAttention(
        kind="kda",
        num_key_heads=heads,
        num_value_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        convolution=own.integer("short_conv_kernel_size"),
    )


def _dense(config: _SparseConfig, index: int) -> DenseNetwork:
    del index
    return DenseNetwork(size=config.integer("intermediate_size"))


def _mixture(size: str, *, has_biases: bool = False) -> Callable[[_SparseConfig, int], FeedForward]:
    """Experts whose width is the field `size`, after the dense layers that `first_k_dense_replace` counts."""

    def feed_forward(config: _SparseConfig, index: int) -> FeedForward:
        if index < config.count("first_k_dense_replace"):
            return _dense(config, index)
        config.require_experts_everywhere()
        width, active, total = config.integer(size), config.first(_ACTIVE), config.first(_EXPERTS)
        if active > total:
            raise config.fail(_ACTIVE[0], active, f"at most the {total} experts of {_present(config, _EXPERTS)}")
        shared = config.count("n_shared_experts") or config.count("num_shared_experts")
        return Experts(
            num_experts=total,
            num_active=active,
            size=width,
            shared_size=shared * width + config.count("shared_expert_intermediate_size"),
            latent_size=config.count("routed_expert_hidden_size"),
            has_biases=has_biases,
        )

    return feed_forward


def _present(config: _SparseConfig, fields: tuple[str, ...]) -> str:
    return next((field for field in fields if config.values.get(field) is not None), fields[0])


_AttentionReader = Callable[[_SparseConfig, int], Attention]
_FeedForwardReader = Callable[[_SparseConfig, int], FeedForward]
_FAMILIES: Mapping[str, tuple[_AttentionReader, _FeedForwardReader]] = {
    "glm4_moe": (_grouped, _mixture("moe_intermediate_size")),
    "gpt_oss": (_grouped, _mixture("intermediate_size", has_biases=True)),
    "minimax_m2": (_grouped, _mixture("intermediate_size")),
    "deepseek_v3": (_latent, _mixture("moe_intermediate_size")),
    "deepseek_v32": (_latent, _mixture("moe_intermediate_size")),
    "kimi_k2": (_latent, _mixture("moe_intermediate_size")),
    "glm_moe_dsa": (_latent, _mixture("moe_intermediate_size")),
    "kimi_linear": (_kimi_hybrid, _mixture("moe_intermediate_size")),
    "qwen3_next": (_qwen_hybrid, _mixture("moe_intermediate_size")),
    "qwen3_5_moe_text": (_qwen_hybrid, _mixture("moe_intermediate_size")),
    "qwen3_5_text": (_qwen_hybrid, _dense),
    "gemma3_text": (_gemma, _dense),
    "llama4_text": (_llama4, _llama4_network),
}
