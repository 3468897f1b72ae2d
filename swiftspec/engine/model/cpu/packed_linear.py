"""Linear layers for few rows on a CPU; weights are packed once at load, as a decode step is bound by reading them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Linear"]

# The packed layout is chosen for this many rows. 4 to 32 are equally fast from 1 to 64 rows; in fp32 a layout
# chosen for 1 row takes twice as long from 2 rows on.
_PACKED_FOR_ROWS = 8
# A packed call costs about 9 us before it multiplies. In fp32 the plain call costs 2 us and is faster up to about this
# many multiplications; in bf16 the packed call is always faster.
_PLAIN_MULTIPLICATIONS = 400_000


def _can_pack(dtype: torch.dtype) -> bool:
    ops = torch.ops.mkldnn
    if not (torch.backends.mkldnn.is_available() and hasattr(ops, "_linear_pointwise")):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(ops._is_mkldnn_bf16_supported()))


class Linear:
    """y = x W^T + b for x [rows, in], W [out, in], b [out] or None, all of one dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, dtype: torch.dtype) -> None:
        plain = weight.to(dtype).contiguous()
        self._bias = None if bias is None else bias.to(dtype)
        self._packed: Tensor | None = None
        if _can_pack(dtype):
            self._packed = torch.ops.mkldnn._reorder_linear_weight(plain, _PACKED_FOR_ROWS)
        self._plain_rows = self._plain_limit(plain)
        self._plain = plain if self._plain_rows > 0 else None

    def _plain_limit(self, plain: Tensor) -> int:
        """The most rows for which the plain weight is used; 0 = never, and then it is not kept in memory."""
        if self._packed is None:
            return torch.iinfo(torch.int64).max
        return _PLAIN_MULTIPLICATIONS // plain.numel() if plain.dtype == torch.float32 else 0

    def __call__(self, x: Tensor) -> Tensor:
        if self._plain is not None and x.shape[0] <= self._plain_rows:
            return F.linear(x, self._plain, self._bias)
        y: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, self._packed, self._bias, "none", [], "")
        return y
