"""Shapes of published models that the registry does not have, as their config.json files state them."""

import json
from pathlib import Path

_CONFIGS: dict[str, dict[str, object]] = {
    # meta-llama/Llama-3.1-405B
    "llama-3.1-405b": {"model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 126,
                       "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248,
                       "vocab_size": 128256, "max_position_embeddings": 131072},
    # meta-llama/Llama-3.1-8B
    "llama-3.1-8b": {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
                     "max_position_embeddings": 131072},
    # meta-llama/Llama-3.2-1B
    "llama-3.2-1b": {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "head_dim": 64,
                     "max_position_embeddings": 131072, "tie_word_embeddings": True},
    # meta-llama/Llama-2-70b-hf
    "llama-2-70b": {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                    "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32000,
                    "max_position_embeddings": 4096},
    # meta-llama/Llama-2-7b-hf
    "llama-2-7b": {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                   "num_key_value_heads": 32, "intermediate_size": 11008, "vocab_size": 32000,
                   "max_position_embeddings": 4096},
    # TinyLlama/TinyLlama-1.1B-Chat-v1.0
    "tinyllama-1.1b": {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32,
                       "num_key_value_heads": 4, "intermediate_size": 5632, "vocab_size": 32000,
                       "max_position_embeddings": 2048},
    # codellama/CodeLlama-34b-hf
    "codellama-34b": {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 64,
                      "num_key_value_heads": 8, "intermediate_size": 22016, "vocab_size": 32000,
                      "max_position_embeddings": 16384},
    # HuggingFaceTB/SmolLM2-1.7B
    "smollm2-1.7b": {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
                     "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 49152,
                     "max_position_embeddings": 8192, "tie_word_embeddings": True},
    # HuggingFaceTB/SmolLM2-135M
    "smollm2-135m": {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9,
                     "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152,
                     "max_position_embeddings": 8192, "tie_word_embeddings": True},
    # mistralai/Mistral-Large-Instruct-2407
    "mistral-large": {"model_type": "mistral", "hidden_size": 12288, "num_hidden_layers": 88, "num_attention_heads": 96,
                      "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 32768, "head_dim": 128,
                      "max_position_embeddings": 131072, "sliding_window": None},
    # mistralai/Mistral-7B-v0.3
    "mistral-7b": {"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
                   "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32768, "head_dim": 128,
                   "max_position_embeddings": 32768, "sliding_window": None},
}  # fmt: skip  # a model's fields as its config.json groups them


def write_config(folder: Path, name: str) -> str:
    """A directory with the model's config.json and nothing else; its path."""
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps(_CONFIGS[name]))
    return str(folder / name)
