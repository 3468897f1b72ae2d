"""Writes a Hugging Face directory of a Llama-type model as GGUF, with llama.cpp's own `gguf` package.

The pre-tokenizer's name is a stand-in: prompts come as token ids.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

KINDS = ("f32", "bf16", "f16", "q8_0")
_FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # llama.cpp's llama_ftype
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ROOT_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # llama.cpp's llama_token_type


def write_gguf(source: Path, out: Path, kind: str, *, gguf_package: Path) -> None:
    """`source` in `kind`, one of KINDS; norms stay in fp32. `gguf_package`: the folder that holds `gguf`."""
    sys.path.insert(0, str(gguf_package))
    import gguf  # type: ignore[import-not-found]  # comes with llama.cpp

    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(out, "llama")
    _write_shape(writer, config, kind)
    _write_vocabulary(writer, json.loads((source / "tokenizer.json").read_text()), config["vocab_size"])
    quantised = {"f32": None, "f16": None, "bf16": "BF16", "q8_0": "Q8_0"}[kind]
    for name, tensor in load_file(source / "model.safetensors").items():
        values = _rotated(name, tensor, config).float().numpy()
        if values.ndim == 1 or kind == "f32":
            writer.add_tensor(_gguf_name(name), values)
        elif quantised is None:
            writer.add_tensor(_gguf_name(name), values.astype(np.float16))
        else:
            raw = gguf.GGMLQuantizationType[quantised]
            writer.add_tensor(_gguf_name(name), gguf.quants.quantize(values, raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: Any, config: dict[str, Any], kind: str) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(_FILE_TYPES[kind])


def _write_vocabulary(writer: Any, tokenizer: dict[str, Any], size: int) -> None:
    texts = {number: text for text, number in tokenizer["model"]["vocab"].items()}
    texts |= {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    control = {each["id"] for each in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("codeshell")
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in range(size)])
    writer.add_token_types(
        [_CONTROL if number in control else _NORMAL if number in texts else _UNUSED for number in range(size)]
    )
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def _gguf_name(name: str) -> str:
    if name in _ROOT_NAMES:
        return _ROOT_NAMES[name]
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{_NAMES[rest.removesuffix('.weight')]}.weight"


def _rotated(name: str, weight: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """Rows of queries and keys in the order of ggml's rotary embedding: a rotating pair's rows adjacent."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    part = name.split(".")[-2]
    if part not in heads:
        return weight
    pairs: torch.Tensor = weight.unflatten(0, (heads[part], 2, -1))
    return pairs.transpose(1, 2).flatten(0, 2)
