"""Function-preserving expansion: a model with the shape and cost of a larger one, and the output of the small one.

Added weights are random where they cannot reach the output and zero where they could: added layers, heads and neurons
compute real numbers; only the projections that would write their results to the residual stream are zero.

Experts that take the place of a network are copies of it, each with its neurons in an order of its own. The router is
random, and its weights of a token's experts add up to one, so that it does not matter which ones it chooses.
"""

import json
import math
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from swiftspec.engine.model.memory import require_memory
from swiftspec.engine.model.weights.checkpoint import load_weights, stored_name, weight_shapes
from swiftspec.engine.model.weights.low_rank import Adapters, LowRank
from swiftspec.engine.model.weights.sharding import EMBEDDING, OnDemand
from swiftspec.files.reading import read_foreign_json
from swiftspec.models.inflation import Inflation
from swiftspec.models.layer_parts import Experts
from swiftspec.models.spec import ModelSpec

_LAYER = "model.layers."
_EXPERT = re.compile(r"(.+\.experts\.\d+)\.(gate|up|down)_proj\.weight$")
_MOST_LAYERS = 100_000  # whose names alone fill some 100 MB
# Projections of a layer that add to the residual stream; zero in an added layer.
_OUTPUTS = ("self_attn.o_proj.weight", "self_attn.o_proj.bias", ".down_proj.weight")
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def inflate_weights(
    weights: Mapping[str, Tensor],
    spec: ModelSpec,
    inflation: Inflation,
    *,
    seed: int,
    device: torch.device | str = "cpu",
) -> Mapping[str, Tensor]:
    """Weights of the model that `inflation` makes of `spec`; its logits are those of `weights`.

    Matrices come in the dtype of the small model's, so that they take no more bytes each; norms in fp32.

    The added dimensions of the residual stream are always zero, since nothing writes to them. RMSNorm sees the same sum
    of squares over more dimensions: norm weights shrink by sqrt(hidden / new hidden), and eps with it in the spec. The
    small model's layers are spread evenly, so that the first half of the layers has the first half of its own.

    A weight is made on demand, on `device`, and is the same every time: a model that a GPU holds in 16 bits need never
    be there, nor on the host, in 32.
    """
    inflated, place = inflation.inflated(spec), torch.device(device)
    if inflated.num_layers > _MOST_LAYERS:
        raise ValueError(f"inflation: layers is {inflated.num_layers}; expected at most {_MOST_LAYERS}")
    shapes, source_of, matrix_dtype = weight_shapes(inflated), _sources(spec, inflated), weights[EMBEDDING].dtype
    has_copies = spec.experts is None and inflated.experts is not None

    def made(name: str) -> Tensor:
        shape = shapes[name]
        # Each weight has its own random stream, whichever were requested before.
        generator = torch.Generator(place).manual_seed(seed + zlib.crc32(name.encode()))
        if (original := weights.get(source_of(name))) is not None:
            weight = _expand(name, original.to(place, torch.float32), shape, generator)
        elif name.endswith(_OUTPUTS):
            weight = torch.zeros(shape, device=place)
        else:
            weight = _random(name, shape, generator)
        if has_copies and (expert := _EXPERT.match(name)):
            weight = _reordered(weight, expert, seed)
        return weight.to(matrix_dtype) if len(shape) == 2 else weight

    return OnDemand(shapes, made)


def inflate_adapters(adapters: Adapters, spec: ModelSpec, inflation: Inflation) -> dict[str, LowRank]:
    """Adapters for the inflated model: as the small weights are in the leading corners of its own, the rest is zero."""
    inflated = inflation.inflated(spec)
    source_of, found = _sources(spec, inflated), {}
    for name, shape in weight_shapes(inflated).items():
        if (small := adapters.get(source_of(name))) is not None:
            (num_outputs, num_inputs), (rank, _) = shape, small.down.shape
            found[name] = LowRank(small.down.new_zeros(rank, num_inputs), small.up.new_zeros(num_outputs, rank))
            found[name].down[:, : small.down.shape[1]] = small.down
            found[name].up[: small.up.shape[0]] = small.up
    return found


def _reordered(weight: Tensor, expert: re.Match[str], seed: int) -> Tensor:
    """The neurons of a network in the order that this expert has them."""
    generator = torch.Generator().manual_seed(seed + zlib.crc32(expert[1].encode()))
    axis = 1 if expert[2] == "down" else 0
    order = torch.randperm(weight.shape[axis], generator=generator).to(weight.device)
    return weight.index_select(axis, order)


def _sources(spec: ModelSpec, inflated: ModelSpec) -> Callable[[str], str]:
    """Name of the small model's weight that a weight starts from; a name the small model lacks if there is none."""
    is_copied = spec.experts is None and inflated.experts is not None
    index_of = {
        str((index + 1) * inflated.num_layers // spec.num_layers - 1): str(index) for index in range(spec.num_layers)
    }

    def source_of(name: str) -> str:
        head, dot, rest = name.removeprefix(_LAYER).partition(".")
        if is_copied:
            rest = re.sub(r"\.experts\.\d+", "", rest)
        return f"{_LAYER}{index_of.get(head, 'none')}{dot}{rest}" if name.startswith(_LAYER) else name

    return source_of


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Norm weights about 1, others scaled so that activations keep the size of their input."""
    noise = torch.randn(shape, generator=generator, device=generator.device)
    if "norm" in name:
        return 1.0 + 0.1 * noise
    return noise / math.sqrt(shape[-1])


def _expand(name: str, original: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """`original` in the leading corner of a tensor of `shape`, the rest random or zero."""
    if tuple(original.shape) == shape:
        return original.clone()
    corner = tuple(slice(size) for size in original.shape)
    if name.endswith(("layernorm.weight", "model.norm.weight")):
        original = original * math.sqrt(original.shape[0] / shape[0])
    if name.endswith((*_OUTPUTS, "embed_tokens.weight")):
        # Rows would write to the added dimensions; columns would let added heads and neurons reach the output.
        result = torch.zeros(shape, device=generator.device)
    else:
        # Added columns read zeros; added rows are heads and neurons that do not reach the output.
        result = _random(name, shape, generator)
    result[corner] = original
    return result


def write_inflated(
    source_dir: str | Path, inflation: Inflation, out_dir: str | Path, *, dtype: torch.dtype, seed: int = 0
) -> None:
    """Write the inflated model as a Hugging Face directory, complete or not at all; ValueError if that fails."""
    source, out = Path(source_dir), Path(out_dir)
    spec = ModelSpec.from_directory(source)
    larger = inflation.inflated(spec)
    config = _inflated_config(source, spec, larger, dtype)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: already exists and is not an empty directory")
    num_bytes = larger.num_parameters * dtype.itemsize
    require_memory(num_bytes, f"inflation: the model of {inflation}")
    _require_disk(num_bytes, out, inflation)
    inflated = inflate_weights(load_weights(source, spec), spec, inflation, seed=seed)
    weights = {stored_name(name, larger): tensor.to(dtype).contiguous() for name, tensor in inflated.items()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            complete = Path(scratch) / "model"
            complete.mkdir()
            (complete / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            save_file(weights, complete / "model.safetensors", metadata={"format": "pt"})
            for name in _TOKENIZER_FILES:
                if (source / name).is_file():
                    shutil.copyfile(source / name, complete / name)
            complete.replace(out)
    except OSError as error:
        raise ValueError(f"{out}: cannot write the inflated model: {error.strerror}") from None


def _require_disk(num_bytes: int, out: Path, inflation: Inflation) -> None:
    existing = next(folder for folder in (out, *out.resolve().parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    if num_bytes > free:
        raise ValueError(
            f"inflation: the model of {inflation} has {num_bytes / 1e9:.3g} GB; there are {free / 1e9:.3g} GB free for "
            f"{out}"
        )


def _inflated_config(source: Path, spec: ModelSpec, inflated: ModelSpec, dtype: torch.dtype) -> dict[str, object]:
    if inflated.architecture == "llama" and inflated.hidden_size % inflated.num_heads:
        # Llama's configuration class insists on this, although head_dim is given.
        raise ValueError(
            f"inflation: heads is {inflated.num_heads}; expected a divisor of hidden {inflated.hidden_size}, "
            "without which transformers does not load a llama model"
        )
    config: dict[str, object] = read_foreign_json(source / "config.json")
    config |= {
        "num_hidden_layers": inflated.num_layers,
        "hidden_size": inflated.hidden_size,
        "intermediate_size": inflated.intermediate_size,
        "num_attention_heads": inflated.num_heads,
        "num_key_value_heads": inflated.num_kv_heads,
        # No longer hidden_size / heads, so it must be given.
        "head_dim": inflated.head_dim,
        "rms_norm_eps": inflated.rms_norm_eps,
        "max_position_embeddings": inflated.max_position,
    }
    if spec.experts is None and inflated.experts is not None:
        config |= _expert_fields(inflated, inflated.experts)
    elif inflated.experts is not None and inflated.architecture == "qwen3_moe":
        config["moe_intermediate_size"] = inflated.intermediate_size
    config.pop("torch_dtype", None)
    config["dtype"] = re.sub(r"^torch\.", "", str(dtype))
    if config.get("layer_types"):
        config["layer_types"] = ["full_attention"] * inflated.num_layers
    return config


def _expert_fields(inflated: ModelSpec, experts: Experts) -> dict[str, object]:
    """What config.json says of experts that the small model does not have."""
    shared: dict[str, object] = {
        "model_type": inflated.architecture,
        "num_experts_per_tok": experts.num_active,
        "rope_theta": inflated.rope_theta,  # else the small architecture's default would become another's
    }
    if inflated.architecture == "mixtral":
        own = {"architectures": ["MixtralForCausalLM"], "num_local_experts": experts.num_experts}
        return {**shared, **own, "sliding_window": None}
    return {
        **shared,
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": experts.num_experts,
        "moe_intermediate_size": experts.size,
        "norm_topk_prob": experts.is_normalised,
    }
