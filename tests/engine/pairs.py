"""Small random draft/target pairs as Hugging Face directories; the draft is the target with noise on its weights."""

import json
from pathlib import Path
from typing import Any

import torch

from swiftspec.files.document import ModelRef

VOCAB_SIZE = 97
_CLASSES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def write_pair(
    directory: Path, *, architecture: str, noise: float = 0.12, seed: int = 0, **overrides: int
) -> tuple[Path, Path]:
    """Directories of a target and a draft whose first choices often, but not always, agree."""
    import transformers  # here: three seconds, which processes that only use a pair need not wait for

    name = _CLASSES[architecture]
    config_class, model_class = getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "initializer_range": 0.4,
    }
    model = model_class(config_class(**(shape | overrides)))
    model.save_pretrained(directory / "target")
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * weight.std(correction=0) * torch.randn_like(weight)
    model.save_pretrained(directory / "draft")
    return directory / "target", directory / "draft"


def with_mask_token(pair: tuple[Path, Path]) -> tuple[Path, Path]:
    """The pair, its draft made a parallel one by a mask token, about which it has learnt nothing."""
    config = pair[1] / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"pard_token": VOCAB_SIZE - 1}))
    return pair


def references(pair: tuple[Path, Path], *, inflate: str | None = None) -> tuple[ModelRef, ModelRef]:
    """References to the directories of a target and its draft, in fp32; only the target is inflated."""
    target, draft = map(str, pair)
    return ModelRef(model=target, inflate=inflate, dtype="float32"), ModelRef(model=draft, dtype="float32")
