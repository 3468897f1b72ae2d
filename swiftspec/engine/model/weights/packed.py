"""Matrices of AWQ and GPTQ checkpoints, whose integers are unpacked when they are read.

Both store `qweight`, `qzeros` and `scales` in place of a linear layer's `weight`: integers of 4 or 8 bits, several in
an int32, and for every group of inputs a zero and a scale, so that a weight is (integer - zero) * scale. In AWQ an
int32 has neighbouring outputs, in the order that its kernels want; in GPTQ it has neighbouring inputs, and `g_idx` may
name every input's group. GPTQ's first format stores zeros less one.

What is computed with are numbers of the scales' type; memory and speed are those of an unquantised model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch
from torch import Tensor

from swiftspec.files.reading import shown
from swiftspec.models.config_json import ConfigJson

_PARTS: Final = ("qweight", "qzeros", "scales")
_GROUPS: Final = "g_idx"
_AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)  # output of an int32's first four bits, of its next ones, ...
_BITS: Final = {"awq": (4,), "gptq": (4, 8)}
_INT32: Final = 32


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """How the matrices of a checkpoint are packed.

    method: awq or gptq. bits: of an integer. group_size: inputs with one scale; 0 for all of them. first_zero: what is
    added to stored zeros.
    """

    method: str
    bits: int
    group_size: int
    first_zero: int

    @classmethod
    def of(cls, directory: Path) -> Self | None:
        """That of config.json; None if nothing is quantised. ValueError for a format that is not unpacked."""
        if not (directory / "config.json").exists():
            return None
        config = ConfigJson.read(directory)
        found = config.values.get("quantization_config")
        if not found:
            return None
        method = found.get("quant_method") if isinstance(found, dict) else None
        if method not in _BITS:
            raise config.fail("quantization_config.quant_method", method, f"{' or '.join(_BITS)}, or no quantisation")
        _expect(config, found, "version", (None, "gemm", "GEMM"))
        _expect(config, found, "bits", _BITS[method])
        size = found.get("group_size", -1)
        if size != -1 and (type(size) is not int or size < 1):
            raise config.fail("quantization_config.group_size", size, "a number of weights, or -1")
        is_first = method == "gptq" and found.get("checkpoint_format", "gptq") == "gptq"
        return cls(method, int(found["bits"]), max(size, 0), int(is_first))

    def name_of(self, tensor: str) -> str | None:
        """The weight that a stored tensor is a part of; None if it is none."""
        module, _, part = tensor.rpartition(".")
        return f"{module}.weight" if part in (*_PARTS, _GROUPS) else None

    def weight(self, name: str, stored: Callable[[str], Tensor | None], *, source: Path) -> Tensor:
        """The matrix [out, in] of this name, as it is stored.

        stored: a tensor of the checkpoint by its name; None if it has none. ValueError names a part that is missing or
        has another shape than the others.
        """
        module = name.removesuffix(".weight")
        parts: list[Tensor] = []
        for part in _PARTS:
            if (found := stored(f"{module}.{part}")) is None:
                raise ValueError(f"{source}: tensor {module}.{part} is missing beside its other parts")
            parts.append(found)
        packed, zeros, scales = parts
        integers = self._outputs(packed) if self.method == "awq" else self._inputs(packed)
        num_inputs, num_groups = len(integers), len(scales)
        groups = torch.arange(num_inputs) // (self.group_size or num_inputs)
        if (named := stored(f"{module}.{_GROUPS}")) is not None:
            groups = named.long()
        offsets = (self._outputs(zeros) + self.first_zero) & self._most
        fits = integers.shape[1:] == scales.shape[1:] and offsets.shape == scales.shape and len(groups) == num_inputs
        if not fits or int(groups.min()) < 0 or int(groups.max()) != num_groups - 1:
            shapes = ", ".join(f"{part} {shown(tuple(each.shape))}" for part, each in zip(_PARTS, parts, strict=True))
            raise ValueError(f"{source}: {module} has {shapes}, which do not belong together")
        return ((integers - offsets[groups]).to(scales.dtype) * scales[groups]).T.contiguous()

    @property
    def _most(self) -> int:
        return (1 << self.bits) - 1

    def _outputs(self, packed: Tensor) -> Tensor:
        """Integers [N, out] of int32s [N, out * bits / 32]."""
        apart = self._apart(packed)  # [N, words, integers of a word]
        if self.method == "awq":
            apart = apart[..., torch.tensor(_AWQ_ORDER).argsort()]
        return apart.flatten(1)

    def _inputs(self, packed: Tensor) -> Tensor:
        """Integers [in, out] of int32s [in * bits / 32, out]."""
        return self._apart(packed).transpose(1, 2).flatten(0, 1)

    def _apart(self, packed: Tensor) -> Tensor:
        """The integers of every int32 along a new last dimension, the lowest bits first."""
        shifts = torch.arange(0, _INT32, self.bits, dtype=torch.int32)
        return (packed[..., None] >> shifts) & self._most


def _expect(config: ConfigJson, found: Mapping[str, Any], field: str, known: tuple[object, ...]) -> None:
    if (value := found.get(field)) not in known:
        expected = " or ".join(str(each) for each in known if each is not None)
        raise config.fail(f"quantization_config.{field}", value, expected)
