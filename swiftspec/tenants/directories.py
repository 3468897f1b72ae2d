"""Reads tenants from Hugging Face model directories and PEFT adapters: headers are checked, tensors are hashed."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from swiftspec.files.reading import read_json, shown
from swiftspec.files.safetensors import StoredTensor, read_header, weight_files
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.tenants.zoo import Adapter, Nearness, Tenant, Weight, Zoo, part_of

__all__ = ["StoredZoo", "read_zoo"]

_ADAPTER_CONFIG, _ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FACTOR = re.compile(r"(.+)\.lora_([AB])\.weight")
_LAYER_NAME = re.compile(r"model\.layers\.(\d{1,9})\.(.+)")
_HEAD_NAME = "lm_head.weight"
# Fields that change no layer: a fine-tune may end its texts in another way, or be used for longer ones.
_FREE_FIELDS = ("eos_token_ids", "max_position")
_Progress = Callable[[int, int, str], None]
_Tensors = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredZoo:
    """A zoo and where its weights are.

    Parameters
    ----------
    zoo : Zoo
    tensors : mapping
        Stored tensors by name, of each tenant.
    """

    zoo: Zoo
    tensors: Mapping[str, _Tensors]

    def nearnesses(self) -> tuple[Nearness, ...]:
        """Cosine of every part that differs from the base's. Reads those parts again.

        ValueError if a tensor is not floating point.
        """
        return tuple(each for tenant in self.zoo.tenants[1:] for each in self._of(tenant))

    def _of(self, tenant: Tenant) -> Iterator[Nearness]:
        differing = set(self.zoo.differing(tenant))
        base, own = self.tensors[self.zoo.base.name], self.tensors[tenant.name]
        for part in dict.fromkeys(map(part_of, self.zoo.base.weights)):
            names = [name for name in base if part_of(name) == part]
            if differing.isdisjoint(names):
                continue
            yield Nearness(
                tenant=tenant.name,
                part=part,
                cosine=_cosine((base[name], own[name]) for name in names),
                num_bytes=sum(own[name].num_bytes for name in differing.intersection(names)),
            )


def read_zoo(directories: Sequence[str | Path], *, progress: _Progress | None = None) -> StoredZoo:
    """Tenants of a base, all their weights hashed.

    Parameters
    ----------
    directories : sequence of str or Path
        The base first: Hugging Face model directories (`demo/target` is the bundled one), or after it LoRA adapters.
    progress : callable, optional
        Told the number of directories that are done, of all, and the next one.

    Raises
    ------
    ValueError
        One sentence naming directory or file, for what is no such directory, damaged, incomplete, or of another shape.
    """
    if len(directories) < 2:
        raise ValueError(f"tenants are {len(directories)}; expected a base and at least one more")
    paths = [model_directory(directory) for directory in directories]
    names = _names([Path(directory) for directory in directories])
    spec = ModelSpec.from_directory(paths[0])
    tensors: dict[str, _Tensors] = {}
    tenants: list[Tenant] = []
    for number, (name, path) in enumerate(zip(names, paths, strict=True)):
        if progress is not None:
            progress(number, len(paths), name)
        if number == 0:
            tensors[name] = _model_tensors(path, spec)
            _check_complete(path, tensors[name], spec)
            tenants.append(Tenant(name=name, weights=_hashed(tensors[name])))
        elif (path / _ADAPTER_CONFIG).is_file():
            factors, replaced = _adapter_tensors(path, tensors[names[0]])
            tensors[name] = {**tensors[names[0]], **replaced}
            weights = {**tenants[0].weights, **_hashed(replaced)}
            tenants.append(Tenant(name=name, weights=weights, adapter=_adapter(path, factors)))
        else:
            _check_shape(path, spec, paths[0])
            tensors[name] = _model_tensors(path, spec)
            _check_same(path, tensors[name], tensors[names[0]])
            tenants.append(Tenant(name=name, weights=_hashed(tensors[name])))
    return StoredZoo(zoo=Zoo(spec, tuple(tenants)), tensors=tensors)


def _names(directories: Sequence[Path]) -> list[str]:
    """Last parts of the paths, or whole ones where these are the same."""
    short = [directory.resolve().name for directory in directories]
    names = [name if short.count(name) == 1 else str(path) for name, path in zip(short, directories, strict=True)]
    if len(set(names)) < len(names):
        raise ValueError(f"tenants are {', '.join(names)}; expected different directories")
    return names


def _model_tensors(directory: Path, spec: ModelSpec) -> dict[str, StoredTensor]:
    """Tensors of a model, but for those that its engine ignores: stored rotary frequencies, and a tied head."""
    found: dict[str, StoredTensor] = {}
    for path in weight_files(directory):
        found |= read_header(path)
    return {
        name: tensor
        for name, tensor in found.items()
        if not name.endswith("rotary_emb.inv_freq") and not (spec.tie_word_embeddings and name == _HEAD_NAME)
    }


def _check_complete(directory: Path, tensors: _Tensors, spec: ModelSpec) -> None:
    """ValueError unless every layer has the tensors of the first, and all together have the model's parameters."""
    layers: dict[int, dict[str, tuple[int, ...]]] = {}
    for name, tensor in tensors.items():
        if found := _LAYER_NAME.match(name):
            layers.setdefault(int(found[1]), {})[found[2]] = tensor.shape
    for number in range(spec.num_layers):
        for name, shape in layers.get(0, {"": ()}).items():
            whole = f"model.layers.{number}.{name}"
            if name not in layers.get(number, {}):
                raise ValueError(f"{directory}: tensor {whole} is missing from the checkpoint")
            _check_tensor(directory, tensors[whole], shape)
    num_parameters = sum(tensor.num_elements for tensor in tensors.values())
    if num_parameters != spec.num_parameters:
        raise ValueError(
            f"{directory}: its tensors have {num_parameters} parameters; "
            f"the model that config.json describes has {spec.num_parameters}"
        )


def _check_shape(directory: Path, spec: ModelSpec, base: Path) -> None:
    own = ModelSpec.from_directory(directory)
    for field in fields(spec):
        value, expected = getattr(own, field.name), getattr(spec, field.name)
        if field.name not in _FREE_FIELDS and value != expected:
            raise ValueError(f"{directory}: {field.name} is {shown(value)}; expected {shown(expected)}, as in {base}")


def _check_same(directory: Path, tensors: _Tensors, base: _Tensors) -> None:
    for name, tensor in base.items():
        if name not in tensors:
            raise ValueError(f"{directory}: tensor {name} is missing from the checkpoint")
        _check_tensor(directory, tensors[name], tensor.shape)
    for name in tensors:
        if name not in base:
            raise ValueError(f"{directory}: unexpected tensor {shown(name)[1:-1]}; its base does not have it")


def _check_tensor(directory: Path, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{directory}: tensor {tensor.name} has shape {shown(tensor.shape)}; expected {shape}")


def _adapter_tensors(directory: Path, base: _Tensors) -> tuple[dict[str, list[StoredTensor]], _Tensors]:
    """Factors A and B of each matrix, and whole tensors that replace the base's. ValueError for anything else."""
    config = read_json(directory / _ADAPTER_CONFIG)
    kind = config.get("peft_type") if isinstance(config, Mapping) else None
    if kind != "LORA":
        raise ValueError(f"{directory}: {_ADAPTER_CONFIG} peft_type is {shown(kind)}; expected 'LORA'")
    factors: dict[str, dict[str, StoredTensor]] = {}
    replaced: dict[str, StoredTensor] = {}
    for name, tensor in read_header(directory / _ADAPTER_WEIGHTS).items():
        whole = name.removeprefix("base_model.model.")
        if (found := _FACTOR.fullmatch(whole)) and f"{found[1]}.weight" in base:
            factors.setdefault(f"{found[1]}.weight", {})[found[2]] = tensor
        elif whole in base:
            _check_tensor(directory, tensor, base[whole].shape)
            replaced[whole] = tensor
        else:
            raise ValueError(
                f"{directory}: tensor {shown(name)[1:-1]} is neither a factor lora_A or lora_B of a matrix of the base "
                "nor one of its tensors"
            )
    return {name: _pair(directory, name, found, base[name], config) for name, found in factors.items()}, replaced


def _pair(
    directory: Path, name: str, found: Mapping[str, StoredTensor], matrix: StoredTensor, config: Mapping[str, Any]
) -> list[StoredTensor]:
    """Factors A, of shape [r, in], and B, [out, r], of a matrix of shape [out, in]."""
    stem = name.removesuffix(".weight")
    for letter in "AB":
        if letter not in found:
            raise ValueError(f"{directory}: tensor {stem}.lora_{letter}.weight is missing from the adapter")
    pattern = config.get("rank_pattern")
    ranks = {config.get("r"), *(pattern.values() if isinstance(pattern, Mapping) else ())}
    rank = found["A"].shape[0] if found["A"].shape else 0
    if rank not in ranks:
        raise ValueError(f"{directory}: {stem}.lora_A has rank {rank}; {_ADAPTER_CONFIG} r is {shown(config.get('r'))}")
    outputs, inputs = matrix.shape if len(matrix.shape) == 2 else (0, 0)
    _check_tensor(directory, found["A"], (rank, inputs))
    _check_tensor(directory, found["B"], (outputs, rank))
    return [found["A"], found["B"]]


def _adapter(directory: Path, factors: Mapping[str, Sequence[StoredTensor]]) -> Adapter:
    if not factors:
        raise ValueError(f"{directory}: {_ADAPTER_WEIGHTS} has no factors lora_A and lora_B")
    return Adapter(
        num_matrices=len(factors),
        ranks=tuple(sorted({pair[0].shape[0] for pair in factors.values()})),
        num_bytes=sum(factor.num_bytes for pair in factors.values() for factor in pair),
    )


def _hashed(tensors: _Tensors) -> dict[str, Weight]:
    return {name: Weight(digest=_digest(tensor), num_bytes=tensor.num_bytes) for name, tensor in tensors.items()}


def _digest(tensor: StoredTensor) -> str:
    """Hash of dtype, shape and bytes."""
    found = hashlib.blake2b(f"{tensor.dtype} {tensor.shape} ".encode(), digest_size=16)
    for piece in tensor.pieces():
        found.update(piece)
    return found.hexdigest()


def _cosine(pairs: Iterable[tuple[StoredTensor, StoredTensor]]) -> float:
    """Cosine of two lists of tensors, each taken as one vector; 0 if one of them is zero."""
    product = left = right = 0.0
    for pair in pairs:
        for first, second in zip(*(tensor.values() for tensor in pair), strict=True):
            product += float(np.vdot(first, second))
            left += float(np.vdot(first, first))
            right += float(np.vdot(second, second))
    return product / (left * right) ** 0.5 if left and right else 0.0
