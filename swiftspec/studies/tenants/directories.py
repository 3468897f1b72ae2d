"""Reads tenants from Hugging Face model directories and PEFT adapters: headers are checked, tensors are hashed."""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swiftspec.files.reading import shown
from swiftspec.files.safetensors import weight_files
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tenants import ADAPTER_WEIGHTS, check_same_shape, is_adapter
from swiftspec.models.tenants import Adapter as LowRank
from swiftspec.studies.tenants.tensors import StoredTensor, read_header
from swiftspec.studies.tenants.zoo import Adapter, Nearness, Tenant, Weight, Zoo, part_of

_FACTOR = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")
_LAYER_NAME = re.compile(r"model\.layers\.(\d{1,9})\.(.+)")
_HEAD_NAME = "lm_head.weight"
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
        elif is_adapter(path):
            tensors[name] = tensors[names[0]]
            tenants.append(Tenant(name=name, weights=tenants[0].weights, adapter=_adapter(path, tensors[name])))
        else:
            check_same_shape(ModelSpec.from_directory(path), spec, path)
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


def _adapter(directory: Path, base: _Tensors) -> Adapter:
    """An adapter: factors A [rank, in] and B [out, rank] of some matrices. ValueError for anything else."""
    rank, path = LowRank.read(directory).rank, directory / ADAPTER_WEIGHTS
    factors: dict[str, set[str]] = {}
    num_bytes = 0
    for name, tensor in read_header(path).items():
        found = _FACTOR.fullmatch(name)
        matrix = base.get(f"{found[1]}.weight") if found else None
        if found is None or matrix is None:
            raise ValueError(
                f"{path}: tensor {shown(name)[1:-1]} is no factor lora_A or lora_B of a matrix of the base"
            )
        outputs, inputs = matrix.shape if len(matrix.shape) == 2 else (0, 0)
        _check_tensor(directory, tensor, (rank, inputs) if found[2] == "A" else (outputs, rank))
        factors.setdefault(found[1], set()).add(found[2])
        num_bytes += tensor.num_bytes
    if not factors:
        raise ValueError(f"{path}: there are no factors lora_A and lora_B")
    for stem, letters in factors.items():
        if missing := {"A", "B"} - letters:
            raise ValueError(f"{path}: tensor {stem}.lora_{missing.pop()}.weight is missing")
    return Adapter(num_matrices=len(factors), rank=rank, num_bytes=num_bytes)


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
