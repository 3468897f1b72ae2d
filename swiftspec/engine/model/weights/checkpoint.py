"""Reads the weights of a Hugging Face directory into a dict that keeps Hugging Face's tensor names.

Every tensor of the spec has its shape, or a ValueError names file and tensor. No arithmetic here. Names of experts are
those of Qwen3-MoE's checkpoints, on the left, also for Mixtral's:

mlp.gate.weight                   block_sparse_moe.gate.weight
mlp.experts.E.gate_proj.weight    block_sparse_moe.experts.E.w1.weight
mlp.experts.E.up_proj.weight      block_sparse_moe.experts.E.w3.weight
mlp.experts.E.down_proj.weight    block_sparse_moe.experts.E.w2.weight
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from swiftspec.engine.model.weights.packed import PackedFormat
from swiftspec.engine.model.weights.sharding import EMBEDDING, HEAD, cut
from swiftspec.files.reading import brief, shown
from swiftspec.files.safetensors import header_length, weight_files
from swiftspec.models.sharding import Shard, shard_of
from swiftspec.models.spec import ModelSpec

ROUTER = "mlp.gate.weight"  # of a layer: [experts, hidden]
_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
_STORED = {name: short for short, name in _MIXTRAL.items()}
_BLOCK, _EXPERTS = ".block_sparse_moe.", ".mlp.experts."
_LAYER_NAME = re.compile(r"model\.layers\.(\d{1,9})\.")


def network_names(spec: ModelSpec) -> list[str]:
    """The prefixes of a layer's feed-forward networks: one, or its experts'."""
    if spec.experts is None:
        return ["mlp"]
    return [f"mlp.experts.{expert}" for expert in range(spec.experts.num_experts)]


def canonical_name(name: str) -> str:
    if _BLOCK not in name:
        return name
    return re.sub(r"\.(w[123])\.weight$", lambda found: f".{_MIXTRAL[found[1]]}.weight", name.replace(_BLOCK, ".mlp."))


def stored_name(name: str, spec: ModelSpec) -> str:
    if spec.architecture != "mixtral" or not (_EXPERTS in name or name.endswith(ROUTER)):
        return name
    head, _, rest = name.partition(".mlp.")
    rest = re.sub(r"\.(\w+_proj)\.weight$", lambda found: f".{_STORED[found[1]]}.weight", rest)
    return f"{head}{_BLOCK}{rest}"


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight of a model; linear weights are [out, in]."""
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, spec.hidden_size)}
    for layer in range(spec.num_layers):
        for name, shape in layer_shapes(spec).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes[HEAD] = (spec.vocab_size, spec.hidden_size)
    return shapes


def layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner, query, kv = spec.hidden_size, spec.intermediate_size, spec.query_size, spec.kv_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
    }
    for network in network_names(spec):
        shapes |= {
            f"{network}.gate_proj.weight": (inner, hidden),
            f"{network}.up_proj.weight": (inner, hidden),
            f"{network}.down_proj.weight": (hidden, inner),
        }
    if spec.experts:
        shapes[ROUTER] = (spec.experts.num_experts, hidden)
    if spec.qkv_bias:
        shapes |= {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", query), ("k", kv), ("v", kv))}
    if spec.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if spec.qk_norm:
        shapes |= {f"self_attn.{name}_norm.weight": (spec.head_dim,) for name in "qk"}
    return shapes


def load_weights(directory: str | Path, spec: ModelSpec, shard: Shard | None = None) -> dict[str, Tensor]:
    """All weights of the model in `directory`, in the dtype they are stored in; of a shard, only its parts are read.

    Reads model.safetensors, or the files named by model.safetensors.index.json. ValueError names the file and the
    missing, unexpected or misshapen tensor, or the file that cannot be read.
    """
    files = weight_files(Path(directory))
    places = stored_places(files)
    _check_layers(Path(directory), places, spec)
    shapes = weight_shapes(spec)
    shard = shard or shard_of(spec, 1, 0)
    packed = PackedFormat.of(Path(directory))
    weights: dict[str, Tensor] = {}
    for path in files:
        weights |= _read(path, shapes, shard, spec, packed, places)
    missing = next((name for name in shapes if name not in weights), None)
    if missing is not None:
        missing = stored_name(missing, spec)
        raise ValueError(f"{directory}: tensor {missing} is missing from the checkpoint")
    if spec.tie_word_embeddings and shard.degree > 1:
        weights[HEAD] = cut(HEAD, weights[EMBEDDING], shard)
    return weights


def _check_layers(directory: Path, names: Iterable[str], spec: ModelSpec) -> None:
    """ValueError if config.json has more layers than the checkpoint, before names for a billion of them are made."""
    num_layers = 1 + max((int(found[1]) for name in names if (found := _LAYER_NAME.match(name))), default=-1)
    if spec.num_layers > num_layers:
        raise ValueError(
            f"{directory}: config.json num_hidden_layers is {spec.num_layers}; "
            f"model.layers.{num_layers} and what follows is missing from the checkpoint"
        )


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A safetensors file whose header has a plausible length."""
    header_length(path)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, MemoryError) as error:
        raise ValueError(f"{path}: not a readable safetensors file: {brief(error)}") from None


def stored_places(files: Iterable[Path]) -> dict[str, Path]:
    places: dict[str, Path] = {}
    for path in files:
        with opened(path) as file:
            places |= dict.fromkeys(file.keys(), path)
    return places


def _stored(places: Mapping[str, Path], name: str) -> Tensor | None:
    """A tensor of the checkpoint, whichever file it is in: parts of a packed matrix may be in several."""
    if name not in places:
        return None
    with opened(places[name]) as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor


def _read(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    shard: Shard,
    spec: ModelSpec,
    packed: PackedFormat | None,
    places: Mapping[str, Path],
) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    with opened(path) as file:
        tensors = file.keys()
        for tensor in tensors:
            matrix = packed.name_of(tensor) if packed else None
            found = matrix or tensor
            name = canonical_name(found)
            if _is_redundant(name, spec) or name in weights:
                continue
            if name not in shapes:
                if packed and name.endswith(".bias") and not file.get_tensor(found).any():
                    continue  # some GPTQ checkpoints have zeros where the model has no bias
                raise ValueError(f"{path}: unexpected tensor {shown(found)[1:-1]}; config.json does not describe it")
            if packed and matrix:
                stored: Any = packed.weight(found, partial(_stored, places), source=path)
            else:
                stored = file.get_slice(found)
            shape = tuple(stored.shape if matrix else stored.get_shape())
            if shape != shapes[name]:
                raise ValueError(f"{path}: tensor {found} has shape {shown(shape)}; expected {shapes[name]}")
            weights[name] = cut(name, stored, shard)
            if not weights[name].is_floating_point():
                dtype = weights[name].dtype
                raise ValueError(f"{path}: tensor {found} has dtype {dtype}; expected floating point")
    return weights


def _is_redundant(name: str, spec: ModelSpec) -> bool:
    """Whether a tensor may be ignored: rotary frequencies, a tied head stored twice, layers that are a draft's."""
    if name.endswith("rotary_emb.inv_freq") or (spec.tie_word_embeddings and name == HEAD):
        return True
    layer = _LAYER_NAME.match(name)
    is_mtp = name.startswith("mtp.") or (layer and 0 <= int(layer[1]) - spec.num_layers < spec.num_mtp_layers)
    return bool(spec.num_mtp_layers and is_mtp)
