"""Reads a head's checkpoint, and what it shares with its target, into the names of one layout.

Layouts: EAGLE-3's own (`midlayer.*`), that of speculators (`layers.0.*`), an MTP layer after the target's
(`model.layers.{N}.*`, as DeepSeek and GLM write it) and one apart from them (`mtp.*`, as Qwen writes it).
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from swiftspec.engine.model.weights.checkpoint import layer_shapes, opened, stored_places
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD
from swiftspec.files.reading import shown
from swiftspec.files.safetensors import weight_files
from swiftspec.models.head_spec import HeadSpec
from swiftspec.models.heads import Drafter
from swiftspec.models.spec import ModelSpec

LAYER = "model.layers.0."
_NORM = "model.norm.weight"
_TOKENS = "d2t"  # what to add to a proposed token's number; the target's token results
# Tensors that are of no use here: the inverse of d2t, and copies of the target's own.
_IGNORED = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
_MTP_NAMES = {
    "eh_proj.weight": "fc.weight",
    "enorm.weight": "embedding_norm.weight",
    "hnorm.weight": "hidden_norm.weight",
    "shared_head.norm.weight": _NORM,
    "shared_head.head.weight": HEAD,
    "embed_tokens.weight": EMBEDDING,
    "fc.weight": "fc.weight",
    "pre_fc_norm_embedding.weight": "embedding_norm.weight",
    "pre_fc_norm_hidden.weight": "hidden_norm.weight",
    "norm.weight": _NORM,
}
_EAGLE3_NAMES = {
    "norm.weight": _NORM,
    "embed_tokens.weight": EMBEDDING,
    "hidden_norm.weight": "hidden_norm.weight",
    "input_layernorm.weight": "embedding_norm.weight",
}


def load_head_weights(spec: HeadSpec, target: ModelSpec, target_directory: Path) -> dict[str, Tensor]:
    """All weights of a head: names of its layer's begin with `LAYER`.

    Embedding and output matrix are the target's if it has none. `tokens`, if there, are the target's tokens that it can
    propose; `carried_norm.weight`, if there, normalises hidden states before the next row reads them. ValueError names
    the file or directory, and the missing, unexpected or misshapen tensor.
    """
    is_mtp = spec.format is Drafter.MTP
    shapes = _shapes(spec)
    optional: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.layer.vocab_size, spec.layer.hidden_size)}
    optional |= {HEAD: (spec.draft_vocab_size, spec.layer.hidden_size), _TOKENS: (spec.draft_vocab_size,)}
    weights = read_tensors(spec.directory, partial(_renamed, spec), shapes | optional)
    if missing := sorted(shapes.keys() - weights.keys()):
        raise ValueError(f"{spec.directory}: tensor {missing[0]} of the head is missing from the checkpoint")
    _share(weights, spec, target, target_directory)
    if is_mtp and any(name.startswith("mtp.") for name in stored_places(weight_files(spec.directory))):
        # A layer with a name of its own goes on from what it normalised.
        weights["carried_norm.weight"] = weights[_NORM]
    offsets = weights.pop(_TOKENS, None)
    if offsets is not None:
        weights["tokens"] = _tokens(offsets, spec)
    elif spec.draft_vocab_size != spec.layer.vocab_size:
        raise ValueError(f"{spec.directory}: tensor d2t is missing from the checkpoint")
    return weights


def _shapes(spec: HeadSpec) -> dict[str, tuple[int, ...]]:
    hidden, is_mtp = spec.layer.hidden_size, spec.format is Drafter.MTP
    num_inputs = 2 * hidden if is_mtp else 3 * spec.target_hidden_size
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (hidden, num_inputs), _NORM: (hidden,)}
    shapes |= {"embedding_norm.weight": (hidden,), "hidden_norm.weight": (hidden,)}
    for name, shape in layer_shapes(spec.layer).items():
        if is_mtp:
            shapes[LAYER + name] = shape
        elif name != "input_layernorm.weight":
            is_wide = name in {f"self_attn.{each}_proj.weight" for each in "qkv"}
            shapes[LAYER + name] = (shape[0], 2 * hidden) if is_wide else shape
    return shapes


def _renamed(spec: HeadSpec, name: str) -> str | None:
    is_mtp = spec.format is Drafter.MTP
    names, prefixes = _EAGLE3_NAMES, ["midlayer.", "layers.0."]
    if is_mtp:
        names, prefixes = _MTP_NAMES, [f"model.layers.{spec.layer_index}.", "mtp.layers.0.", "mtp."]
    else:
        name = name.removeprefix("model.")
    for prefix in prefixes:
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return names.get(rest, LAYER + rest)
    return None if is_mtp else names.get(name, name)


def read_tensors(
    directory: Path, renamed: Callable[[str], str | None], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Tensors by their new names, without those renamed to None. ValueError names the file and a wrong one."""
    weights: dict[str, Tensor] = {}
    for path in weight_files(directory):
        with opened(path) as file:
            names = file.keys()
            for name in names:
                wanted = renamed(name)
                if wanted is None or name.endswith(_IGNORED):
                    continue
                if wanted not in shapes:
                    raise ValueError(f"{path}: unexpected tensor {shown(name)[1:-1]}; config.json does not describe it")
                shape = tuple(file.get_slice(name).get_shape())
                if shape != shapes[wanted]:
                    raise ValueError(f"{path}: tensor {name} has shape {shown(shape)}; expected {shapes[wanted]}")
                weights[wanted] = file.get_tensor(name)
    return weights


def _share(weights: dict[str, Tensor], spec: HeadSpec, target: ModelSpec, directory: Path) -> None:
    shape = (target.vocab_size, target.hidden_size)
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: shape, HEAD: shape, _NORM: (target.hidden_size,)}
    own = read_tensors(directory, lambda name: name if name in shapes else None, shapes)
    own.setdefault(HEAD, own[EMBEDDING])
    if spec.format is Drafter.MTP:
        weights["feature_norm.weight"] = own[_NORM]
    for name, wanted in ((EMBEDDING, spec.layer.vocab_size), (HEAD, spec.draft_vocab_size)):
        if name not in weights and own[name].shape != (wanted, spec.layer.hidden_size):
            raise ValueError(
                f"{spec.directory}: tensor {name} is missing from the checkpoint; the target's, of shape "
                f"{tuple(own[name].shape)}, does not fit it"
            )
        weights.setdefault(name, own[name])


def _tokens(offsets: Tensor, spec: HeadSpec) -> Tensor:
    tokens = offsets.long() + torch.arange(len(offsets))
    if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < spec.layer.vocab_size:
        raise ValueError(
            f"{spec.directory}: tensor d2t leads to token {int(tokens.max())}; "
            f"expected 0 to {spec.layer.vocab_size - 1}"
        )
    return tokens
