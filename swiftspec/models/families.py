"""Layers of models that are planned for only, from their config.json: attention and network, by `model_type`."""

import dataclasses
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
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

_WINDOW, _CHUNK = "sliding_attention", "chunked_attention"
_FULL, _LINEAR = ("full_attention", "attention"), "linear_attention"
_ACTIVE = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
_MOST_LAYERS = 10_000  # a hundred times those of any model
# Transformers' defaults for fields that config.json files leave out.
_TIED: Mapping[str, Any] = {"tie_word_embeddings": True}
LEFT_OUT: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("cohere", "cohere2", "gemma2", "gemma4_text", "ernie4_5", "ernie4_5_moe", "smollm3"), _TIED),
    "hunyuan_v1_moe": {"num_shared_expert": 1},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    },
}
# Of so many layers the last one reads all tokens and the others a window, unless the file says otherwise.
_WINDOWS: Mapping[str, int] = {"gemma2": 2, "gemma3_text": 6, "gemma4_text": 6, "cohere2": 4, "olmo3": 4}
# Fields that may be lists of every layer's values.
_BY_LAYER = (
    "layer_types",
    "mlp_layer_types",
    "moe_layer_freq",
    "block_configs",
    "no_rope_layers",
    "indexer_types",
    "moe_topk",
    "moe_intermediate_size",
    "num_shared_expert",
)
_ALWAYS = ("mistral", "mixtral", "phi3")  # windows in every layer, unless the window is null
_MISTRAL_WINDOW = 4096  # unless it is stated
_NORMS_TOGETHER = ("olmo2", "olmo3", "olmoe")
# Fields of layers that nothing here knows the cost of.
_UNPLANNED: Mapping[str, str] = {
    "mamba_num_heads": "Mamba layers",
    "mamba_d_ssm": "Mamba layers",
    "mamba_d_conv": "Mamba layers",
    "conv_L_cache": "convolutions",
    "compress_ratios": "attention to compressed tokens",
    "sparse_attention_config": "attention to selected blocks of tokens",
    "hidden_size_per_layer_input": "embeddings of every layer",
    "swa_v_head_dim": "values of another width than keys",
    "attention_other_setting": "other heads in layers with a window",
}


class LayerConfig(ConfigJson):
    """A config.json whose layers are listed one by one, or of one layer: lists of layers are its own values there."""

    @property
    def kind(self) -> str:
        return str(self.values.get("model_type"))

    def layers(self) -> tuple[Layer, ...]:
        """The layers of a model of one of `FAMILIES`."""
        attention, network = FAMILIES[self.kind]
        return tuple(
            Layer(attention=attention(config, index), feed_forward=network(config, index))
            for index, config in enumerate(self.each())
        )

    def windows(self) -> list[int]:
        """Latest tokens that each layer reads; 0 for all."""
        return [config.window(index) for index, config in enumerate(self.each())]

    def each(self) -> Iterator["LayerConfig"]:
        """Every layer's fields."""
        count, shared = self.integer("num_hidden_layers", most=_MOST_LAYERS), dict(self.values)
        lists = {name: item for name in _BY_LAYER if isinstance(item := shared.get(name), list) and len(item) >= count}
        stated = shared.get("per_layer_config") or {}  # by transformers 5, for layers unlike the others
        if not isinstance(stated, dict) or any(not isinstance(item, dict) for item in stated.values()):
            raise self.fail("per_layer_config", stated, "an object for each of some layers")
        for index in range(count):
            own = {name: item[index] for name, item in lists.items()} | stated.get(str(index), {})
            yield LayerConfig(self.directory, ChainMap(own, shared))

    def refuse_unplanned(self) -> None:
        """ValueError for layers whose cost is not known, by what they have."""
        kinds = self.values.get("layer_types")
        has_attention_only = isinstance(kinds, list) and all(kind in _FULL for kind in kinds)
        for field, what in _UNPLANNED.items():
            if self.values.get(field) and not (has_attention_only and field.startswith("mamba_")):
                raise self.fail(field, self.values[field], f"none, since {what} cannot be planned")

    def window(self, index: int) -> int:
        """Latest tokens that this layer reads; 0 for all."""
        kind, always, known = self.values.get("layer_types"), self.kind in _ALWAYS, (_WINDOW, _CHUNK, *_FULL, _LINEAR)
        if kind is not None and kind not in known:
            raise self.fail("layer_types", kind, f"one of {', '.join(known)} for every layer")
        usual = _MISTRAL_WINDOW if self.kind == "mistral" else None
        if kind is not None:
            has_window = kind == _WINDOW
        elif self.kind in _WINDOWS:
            stated = self.count("sliding_window_pattern") or self.count("_sliding_window_pattern")
            has_window = bool((index + 1) % (stated or _WINDOWS[self.kind]))
        else:
            is_first = not always and index < self.count("max_window_layers")
            is_stated = self.values.get("sliding_window", usual) is not None
            has_window = is_stated and self.flag("use_sliding_window", always) and not is_first
        return self.integer("sliding_window", usual) if has_window else 0


def _grouped(config: LayerConfig, index: int) -> GroupedAttention:
    heads = config.integer("num_attention_heads")
    return GroupedAttention(
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", config.integer("hidden_size") // heads),
        window=config.window(index),
        norms_heads_together=config.kind in _NORMS_TOGETHER or config.values.get("qk_norm_type") == "per_layer",
    )


def _gemma4(config: LayerConfig, index: int) -> GroupedAttention:
    """Layers without a window have heads of their own, and may take keys for values."""
    found, shares = _grouped(config, index), config.flag("attention_k_eq_v", False)
    if found.window:
        return found
    return dataclasses.replace(
        found,
        head_dim=config.integer("global_head_dim", found.head_dim),
        num_kv_heads=config.integer("num_global_key_value_heads", found.num_kv_heads) if shares else found.num_kv_heads,
        takes_keys=shares,
    )


def _gemma4_network(config: LayerConfig, index: int) -> FeedForward:
    """Experts beside a dense network."""
    dense = _dense(config, index)
    if not config.flag("enable_moe_block", False):
        return dense
    experts = _mixture("moe_intermediate_size")(config, index)
    assert isinstance(experts, Experts), "no layer is dense"
    return dataclasses.replace(experts, shared_size=dense.size)


def _nas(config: LayerConfig, index: int) -> GroupedAttention | None:
    """Attention of a model that a search of architectures has pruned: with its own heads in every layer, or none."""
    found = _grouped(config, index)
    block = _block(config, "attention")
    if block.values.get("no_op"):
        return None
    of_group = block.integer("n_heads_in_group")
    return dataclasses.replace(found, num_kv_heads=found.num_heads // of_group, window=block.count("window_length"))


def _nas_network(config: LayerConfig, index: int) -> DenseNetwork | None:
    """Width by a factor of the hidden size, in 256s (`_ffn_mult_to_intermediate_size` in the checkpoints' code)."""
    del index
    block = _block(config, "ffn")
    if block.values.get("no_op"):
        return None
    width = int(2 * block.number("ffn_mult") * config.integer("hidden_size") / 3)
    return DenseNetwork(size=-(-width // 256) * 256)


def _block(config: LayerConfig, part: str) -> LayerConfig:
    block = config.values.get("block_configs")
    found = block.get(part) if isinstance(block, dict) else None
    if not isinstance(found, dict) or found.get("replace_with_linear"):
        raise config.fail(f"block_configs.{part}", found, "the attention or network of every layer, or no_op")
    return LayerConfig(config.directory, found)


def _llama4(config: LayerConfig, index: int) -> GroupedAttention:
    """Layers with positions read a chunk of the text, every fourth one, without, all of it."""
    listed = config.values.get("no_rope_layers") or None
    has_positions = (index + 1) % config.integer("no_rope_layer_interval", 4) if listed is None else listed
    if isinstance(has_positions, list):
        raise config.fail("no_rope_layers", listed, "a number for every layer")
    return dataclasses.replace(
        _grouped(config, index), window=config.integer("attention_chunk_size") if has_positions else 0
    )


def _llama4_network(config: LayerConfig, index: int) -> FeedForward:
    """Experts in every layer, or in every second one."""
    if (index + 1) % config.integer("interleave_moe_layer_step", 1):
        return DenseNetwork(size=config.integer("intermediate_size_mlp"))
    size = config.integer("intermediate_size")
    total, active = config.integer("num_local_experts"), config.integer("num_experts_per_tok", 1)
    if active > total:
        raise config.fail("num_experts_per_tok", active, f"at most the {total} experts of num_local_experts")
    return Experts(num_experts=total, num_active=active, size=size, shared_size=size)


def _latent(config: LayerConfig, index: int) -> LatentAttention:
    del index
    indexer = None
    if config.count("index_topk"):
        kind = config.values.get("indexer_types")
        if kind not in (None, "full", "shared"):
            raise config.fail("indexer_types", kind, "full or shared for every layer")
        indexer = Indexer(
            num_heads=config.integer("index_n_heads"),
            head_dim=config.integer("index_head_dim"),
            num_tokens=config.integer("index_topk"),
            is_shared=kind == "shared",  # the tokens that an earlier layer selected, as in most of GLM-5.2
        )
    return LatentAttention(
        num_heads=config.integer("num_attention_heads"),
        query_rank=config.count("q_lora_rank"),
        kv_rank=config.integer("kv_lora_rank"),
        plain_dim=config.integer("qk_nope_head_dim"),
        rotary_dim=config.integer("qk_rope_head_dim"),
        value_dim=config.integer("v_head_dim"),
        indexer=indexer,
    )


def _qwen_hybrid(config: LayerConfig, index: int) -> Attention:
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


def _kimi_hybrid(config: LayerConfig, index: int) -> Attention:
    """Kimi delta attention, and latent attention in the layers that are listed, counted from 1."""
    linear = config.values.get("linear_attn_config")
    found = linear if isinstance(linear, dict) else {}
    listed = found.get("full_attn_layers")
    if not isinstance(listed, list) or len(listed) > config.integer("num_hidden_layers"):
        raise config.fail("linear_attn_config", linear, "an object with full_attn_layers, at most all of them")
    if index + 1 in listed:
        return _latent(config, index)
    own = LayerConfig(config.directory, found)
    heads, head_dim = own.integer("num_heads"), own.integer("head_dim")
    return LinearAttention(
        kind="kda",
        num_key_heads=heads,
        num_value_heads=heads,
        key_dim=head_dim,
        value_dim=head_dim,
        convolution=own.integer("short_conv_kernel_size"),
    )


def _dense(config: LayerConfig, index: int) -> DenseNetwork:
    del index
    return DenseNetwork(size=config.integer("intermediate_size"))


def _mixture(*sizes: str) -> Callable[[LayerConfig, int], FeedForward]:
    """Experts whose width is the first of the fields that is there, in layers that the file does not say are dense."""

    def feed_forward(config: LayerConfig, index: int) -> FeedForward:
        first = config.count("first_k_dense_replace") or config.count("moe_layer_start_index")
        if index < first or config.values.get("mlp_layer_types") == "dense" or config.values.get("moe_layer_freq") == 0:
            return _dense(config, index)
        config.require_experts_everywhere()
        width = config.integer(config.present(sizes))
        active, total = (config.integer(config.present(fields)) for fields in (_ACTIVE, _EXPERTS))
        if active > total:
            expected = f"at most the {total} experts of {config.present(_EXPERTS)}"
            raise config.fail(config.present(_ACTIVE), active, expected)
        shared = config.count("shared_expert_intermediate_size") + config.count("shared_intermediate_size")
        return Experts(
            num_experts=total,
            num_active=active,
            size=width,
            shared_size=config.count(config.present(_SHARED)) * width + shared,
            latent_size=config.count("routed_expert_hidden_size"),
        )

    return feed_forward


def _granite_network(config: LayerConfig, index: int) -> FeedForward:
    """Experts beside a dense network, or that alone."""
    if config.count("num_local_experts"):
        return _mixture("intermediate_size")(config, index)
    return DenseNetwork(size=config.integer("shared_intermediate_size"))


_AttentionReader = Callable[[LayerConfig, int], Attention | None]
_FeedForwardReader = Callable[[LayerConfig, int], FeedForward | None]
_DENSE = (
    "cohere",
    "cohere2",
    "ernie4_5",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "granite",
    "hunyuan_v1_dense",
    "mimo",
    "ministral3",
    "olmo2",
    "olmo3",
    "phi3",
    "seed_oss",
    "smollm3",
)
_LATENT_MIXTURES = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2")
_OWN_WIDTH = ("ernie4_5_moe", "glm4_moe", "qwen2_moe")
FAMILIES: Mapping[str, tuple[_AttentionReader, _FeedForwardReader]] = {
    **dict.fromkeys(_DENSE, (_grouped, _dense)),
    **dict.fromkeys(_LATENT_MIXTURES, (_latent, _mixture("moe_intermediate_size"))),
    **dict.fromkeys(_OWN_WIDTH, (_grouped, _mixture("moe_intermediate_size"))),
    **dict.fromkeys(("gpt_oss", "granitemoe", "minimax_m2", "olmoe"), (_grouped, _mixture("intermediate_size"))),
    "gemma4_text": (_gemma4, _gemma4_network),
    "hunyuan_v1_moe": (_grouped, _mixture("moe_intermediate_size", "intermediate_size")),
    "granitemoehybrid": (_grouped, _granite_network),
    "granitemoeshared": (_grouped, _granite_network),
    "kimi_linear": (_kimi_hybrid, _mixture("moe_intermediate_size")),
    "llama4_text": (_llama4, _llama4_network),
    "nemotron-nas": (_nas, _nas_network),
    "qwen3_5_moe_text": (_qwen_hybrid, _mixture("moe_intermediate_size")),
    "qwen3_5_text": (_qwen_hybrid, _dense),
    "qwen3_next": (_qwen_hybrid, _mixture("moe_intermediate_size")),
}
# Those that are planned for only, since the engine does not have their layers: dense ones first.
PLANNED_ONLY = (*_DENSE, *sorted(FAMILIES.keys() - {*_DENSE}))
