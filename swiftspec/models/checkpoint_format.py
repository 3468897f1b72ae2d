"""Format of a checkpoint's weights, as `quantization_config` of its config.json or hf_quant_config.json beside it says.

The fields are those of Hugging Face's quantisers, of compressed-tensors, and of NVIDIA's ModelOpt.
"""

import fnmatch
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from swiftspec.files.reading import read_foreign_json, shown
from swiftspec.models.layer_parts import LinearAttention
from swiftspec.models.quantisation import QUANTISATIONS, Part, Quantisation, StoredWeights
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.models.spec import ModelSpec

_BF16: Final = QUANTISATIONS["bf16"]
_SCALE_BITS: Final = 16
_FIELD: Final = "quantization_config"
_PREFIXES: Final = ("model.", "language_model.model.", "model.language_model.", "")
# Words of ModelOpt, and the formats that they are.
_ALGORITHMS: Final[Mapping[str, Quantisation]] = {
    "FP8": QUANTISATIONS["fp8"],
    "FP8_PB_WO": QUANTISATIONS["fp8"],
    "FP8_PER_CHANNEL_PER_TOKEN": QUANTISATIONS["fp8"],
    "MXFP8": Quantisation(name="fp8", weight_bits=8, group_size=32, scale_bits=8),
    "NVFP4": QUANTISATIONS["nvfp4"],
    "NVFP4_AWQ": QUANTISATIONS["nvfp4"],
    "W4A16_NVFP4": QUANTISATIONS["nvfp4"],
    "W4A8_AWQ": Quantisation(name="int4", weight_bits=4, group_size=128, scale_bits=_SCALE_BITS),
    "W4A16_AWQ": Quantisation(name="int4", weight_bits=4, group_size=128, scale_bits=_SCALE_BITS),
    "W8A8_SQ_PER_CHANNEL": QUANTISATIONS["int8"],
}


def stored_weights(directory: Path, values: Mapping[str, Any], spec: ModelSpec) -> StoredWeights | None:
    """Format of the weights of a model directory; None if they are not quantised.

    values: its config.json.
    """
    path, text = directory / "config.json", values.get("text_config")
    found = values.get(_FIELD) or (text.get(_FIELD) if isinstance(text, dict) else None)
    beside = directory / "hf_quant_config.json"
    if found is None and beside.is_file():
        path, outer = beside, read_foreign_json(beside)
        found = outer.get("quantization") if isinstance(outer, dict) else outer
    if found is None:
        return None
    try:
        if not isinstance(found, dict):
            raise _error(_FIELD, found, "an object")
        method = found.get("quant_method") or ("modelopt" if found.get("quant_algo") else None)
        if not isinstance(method, str) or method not in _READERS:
            raise _error("quant_method", method, f"one of {', '.join(_READERS)}")
        return _averaged(_READERS[method](found), spec)
    except ValueError as error:
        return StoredWeights(name="", objection=f"{path}: {error}")


class _Names:
    """Modules by name, a part of it, a pattern with stars, or a regular expression after `re:`."""

    def __init__(self, field: str, names: object) -> None:
        if not isinstance(names, list) or any(not isinstance(name, str) for name in names):
            raise _error(field, names, "a list of modules")
        expressions = [name[3:] for name in names if name.startswith("re:")]
        # `layers.1*` is layer 1 with all that it has, not 10 to 19, too.
        plain = {name for name in names if re.fullmatch(r"[^*]*(\d\*)?", name) and not name.startswith("re:")}
        globs = [_canonical(name) for name in names if name not in plain and not name.startswith("re:")]
        self._plain = {_canonical(name.removesuffix("*")) for name in plain}
        self._globs = re.compile("|".join(fnmatch.translate(name + end) for name in globs for end in ("", ".*")))
        try:
            self._expressions = [re.compile(_aliased(expression)) for expression in expressions]
        except re.error as error:
            raise ValueError(f"{_FIELD}.{field} has a regular expression that is none ({error})") from error

    def __contains__(self, name: str) -> bool:
        words = name.split(".")
        ends = range(1, len(words) + 1)
        if any(".".join(words[first:last]) in self._plain for last in ends for first in range(last)):
            return True
        if self._globs.fullmatch(name):
            return True
        return any(one.match(prefix + name) for one in self._expressions for prefix in _PREFIXES)


class _Scheme(NamedTuple):
    """Formats, each of the modules that it names or of all, without those that are not quantised."""

    formats: tuple[tuple[Quantisation, _Names | None], ...]
    kept: _Names
    has_head: bool = False  # whether the output matrix is among all modules

    def format_of(self, name: str) -> Quantisation:
        if name in self.kept:
            return _BF16
        for quantisation, names in self.formats:
            if (name in names) if names else (self.has_head or name != "lm_head"):
                return quantisation
        return _BF16


def _averaged(scheme: _Scheme, spec: ModelSpec) -> StoredWeights | None:
    bits: dict[Part, float] = defaultdict(float)
    counts: Counter[Part] = Counter()
    of_format: Counter[str] = Counter()
    of_dense: Counter[str] = Counter()
    for part, name, count in _modules(spec):
        quantisation = scheme.format_of(name)
        bits[part] += count * quantisation.bits_per_weight
        counts[part] += count
        of_format[quantisation.name] += count
        of_dense[quantisation.name] += count * (part in (Part.ATTENTION, Part.NETWORKS))
    del of_format[_BF16.name]
    if not of_format:
        return None
    by_part = tuple((part, bits[part] / counts[part] if counts[part] else _BF16.bits_per_weight) for part in Part)
    name, dense = (found.most_common(1)[0][0] for found in (of_format, of_dense))
    return StoredWeights(name=name, dense=dense, bits_by_part=by_part)


def _modules(spec: ModelSpec) -> Iterator[tuple[Part, str, int]]:
    """Matrices as `layers.0.self_attn.q_proj`, with the number of their weights; experts of a layer as one."""
    layers = spec.layers if isinstance(spec, SparseSpec) else SparseSpec.of_alike(spec).layers
    for index, layer in enumerate(layers):
        is_gdn = isinstance(layer.attention, LinearAttention) and layer.attention.kind == "gdn"
        for name, count in layer.attention.matrices(spec.hidden_size).items() if layer.attention else ():
            yield Part.ATTENTION, f"layers.{index}.{'linear' if is_gdn else 'self'}_attn.{name}", count
        for name, count in layer.feed_forward.matrices(spec.hidden_size).items() if layer.feed_forward else ():
            part = Part.EXPERTS if name.startswith("experts.") else Part.NETWORKS
            module = f"layers.{index}.mlp.{name}"
            if spec.architecture == "gemma4_text":  # whose experts are beside the dense network
                module = module.replace("mlp.experts.", "experts.").replace("mlp.shared_expert.", "mlp.")
            yield part, module, count
    if not spec.tie_word_embeddings:
        yield Part.HEAD, "lm_head", spec.vocab_size * spec.hidden_size


def _canonical(name: str) -> str:
    """A module's name without what only says where the decoder is."""
    return _aliased(re.sub(r"^(?:(?:model|language_model|backbone)\.)+", "", name))


def _aliased(name: str) -> str:
    """The same with one word for each of the layers' parts."""
    name = re.sub(r"\b(block_sparse_moe|feed_forward|ffn)\b", "mlp", name.replace("shared_experts", "shared_expert"))
    for short, word in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
        name = re.sub(rf"\.{short}\b", f".{word}", name)
    return name


def _fp8(found: Mapping[str, Any]) -> _Scheme:
    block = found.get("weight_block_size") or [0, 0]
    if not isinstance(block, list) or len(block) != 2 or any(type(size) is not int or size < 0 for size in block):
        raise _error("weight_block_size", block, "two numbers of weights")
    kept = _list(found, "modules_to_not_convert") + _list(found, "ignored_layers")
    fp8 = Quantisation(name="fp8", weight_bits=8, group_size=block[0] * block[1], scale_bits=32)
    return _Scheme(formats=((fp8, None),), kept=_Names("modules_to_not_convert", kept))


def _mxfp4(found: Mapping[str, Any]) -> _Scheme:
    kept = _Names("modules_to_not_convert", _list(found, "modules_to_not_convert"))
    return _Scheme(formats=((QUANTISATIONS["mxfp4"], None),), kept=kept)


def _grouped_integers(found: Mapping[str, Any]) -> _Scheme:
    """AWQ and GPTQ: a scale, and a zero unless it is left out, for every group of weights."""
    bits = found.get("bits")
    if bits not in (4, 8):
        raise _error("bits", bits, "4 or 8")
    zero_bits = bits if found.get("zero_point", True) else 0
    dynamic = found.get("dynamic") or {}
    if not isinstance(dynamic, dict):
        raise _error("dynamic", dynamic, "an object")
    kept = _list(found, "modules_to_not_convert")
    kept += [f"re:{name[2:]}" for name in dynamic if name.startswith("-:")]
    quantisation = Quantisation(
        name=f"int{bits}",
        weight_bits=bits,
        group_size=_group_size(found.get("group_size")),
        scale_bits=_SCALE_BITS + zero_bits,
    )
    is_head = bool(found.get("lm_head"))
    return _Scheme(formats=((quantisation, None),), kept=_Names("modules_to_not_convert", kept), has_head=is_head)


def _compressed_tensors(found: Mapping[str, Any]) -> _Scheme:
    groups = found.get("config_groups")
    if not isinstance(groups, dict) or not groups or any(not isinstance(group, dict) for group in groups.values()):
        raise _error("config_groups", groups, "an object of groups")
    formats = list[tuple[Quantisation, _Names | None]]()
    for group in groups.values():
        targets = group.get("targets") or ["Linear"]
        names = None if targets == ["Linear"] else _Names("targets", targets)
        formats.append((_format_of(group.get("weights")), names))
    return _Scheme(formats=tuple(formats), kept=_Names("ignore", _list(found, "ignore")), has_head=True)


def _format_of(weights: object) -> Quantisation:
    if not isinstance(weights, dict):
        raise _error("config_groups.weights", weights, "an object")
    kind, bits, size = weights.get("type"), weights.get("num_bits"), _group_size(weights.get("group_size"))
    if (kind, bits) == ("float", 4) and size in (16, 32):
        return QUANTISATIONS["nvfp4" if size == 16 else "mxfp4"]
    if (kind, bits) == ("float", 8):
        return Quantisation(name="fp8", weight_bits=8, group_size=size, scale_bits=8)
    if kind == "int" and bits in (4, 8):
        zero_bits = 0 if weights.get("symmetric", True) else bits
        return Quantisation(name=f"int{bits}", weight_bits=bits, group_size=size, scale_bits=_SCALE_BITS + zero_bits)
    raise _error(
        "config_groups.weights",
        f"{kind} of {bits} bits",
        "int of 4 or 8 bits, or float of 8, or of 4 in groups of 16 or 32",
    )


def _modelopt(found: Mapping[str, Any]) -> _Scheme:
    kept = _Names("exclude_modules", _list(found, "exclude_modules") + _list(found, "ignore"))
    layers = found.get("quantized_layers") or {}
    if not isinstance(layers, dict) or any(not isinstance(layer, dict) for layer in layers.values()):
        raise _error("quantized_layers", layers, "an object of layers")
    if not layers:
        return _Scheme(formats=((_algorithm(found.get("quant_algo")), None),), kept=kept, has_head=True)
    by_algorithm: dict[str, list[str]] = defaultdict(list)
    for name, layer in layers.items():
        by_algorithm[str(layer.get("quant_algo"))].append(name)
    formats = [(_algorithm(word), _Names("quantized_layers", names)) for word, names in by_algorithm.items()]
    return _Scheme(formats=tuple(formats), kept=kept)


def _algorithm(word: object) -> Quantisation:
    if not isinstance(word, str) or word not in _ALGORITHMS:
        raise _error("quant_algo", word, f"one of {', '.join(_ALGORITHMS)}")
    return _ALGORITHMS[word]


def _list(found: Mapping[str, Any], field: str) -> list[str]:
    names = found.get(field) or []
    if not isinstance(names, list):
        raise _error(field, names, "a list of modules")
    return names


def _group_size(size: object) -> int:
    """Weights of a group; 0 for a whole row, which files write as -1 or leave out."""
    if size in (None, -1):
        return 0
    if type(size) is not int or size < 1:
        raise _error("group_size", size, "a number of weights, or -1")
    return size


def _error(field: str, value: object, expected: str) -> ValueError:
    name = field if field == _FIELD else f"{_FIELD}.{field}"
    return ValueError(f"{name} is {shown(value)}; expected {expected}")


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], _Scheme]]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "awq": _grouped_integers,
    "gptq": _grouped_integers,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
}
