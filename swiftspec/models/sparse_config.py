"""Shapes from the config.json of sparse models: one reader for each family of `model_type`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

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
from swiftspec.models.sparse_spec import SparseSpec, experts_of
from swiftspec.models.spec import ModelSpec

__all__ = ["read_spec", "spec_from_config"]

_WINDOW, _FULL, _LINEAR = "sliding_attention", "full_attention", "linear_attention"
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_MOST_LAYERS = 10_000  # a hundred times those of any model
_MOST_PARAMETERS = 10**15  # hundreds of times the largest
_LATENT_HEAD_DIM = 128  # of a dense layer beside one of latent attention, as published heads have


def read_spec(directory: Path) -> ModelSpec:
    """Shape of a model that may be sparse. ValueError names directory, field and value of what does not fit."""
    config = _SparseConfig.read(directory)
    return spec_from_config(config.values, source=str(directory))


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
    text = values.get("text_config")  # of a model that reads images as well
    own = text if isinstance(text, dict) else values
    config = _SparseConfig(Path(source), own)
    kind = own.get("model_type")
    if not isinstance(kind, str) or kind not in _FAMILIES:
        spec = ModelSpec.from_config(own, source=source)
        if spec.experts is None:
            return spec
        config.num_layers()
        return SparseSpec.of_alike(spec)
    return config.spec(kind)


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
            max_position=self.integer("max_position_embeddings"),
            rms_norm_eps=self.number("rms_norm_eps", 1e-6),
            rope_theta=10000.0,
            rope_scaling=None,
            tie_word_embeddings=self.flag("tie_word_embeddings", kind == "gemma3_text"),
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
        kinds = self.values.get("layer_types")
        if kinds is None:
            return _FULL
        if not isinstance(kinds, list) or len(kinds) <= index or kinds[index] not in (_WINDOW, _FULL, _LINEAR):
            raise self.fail("layer_types", kinds, f"{_WINDOW}, {_FULL} or {_LINEAR} for every layer")
        return str(kinds[index])


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
    """Every sixth layer reads all tokens, the others a window."""
    heads = config.integer("num_attention_heads")
    pattern = config.integer("sliding_window_pattern", 6)
    return GroupedAttention(
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", 256),
        window=0 if (index + 1) % pattern == 0 else config.integer("sliding_window"),
    )


def _latent(config: _SparseConfig, index: int) -> LatentAttention:
    del index
    indexer = None
    if config.count("index_topk"):
        indexer = Indexer(
            num_heads=config.integer("index_n_heads"),
            head_dim=config.integer("index_head_dim"),
            num_tokens=config.integer("index_topk"),
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
}
