"""Weights that several models share: what is made of equal weights is made once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

__all__ = ["SharedWeights"]

_Made = TypeVar("_Made")


class SharedWeights:
    """Finds equal weights by their content, wherever they were loaded from.

    Parameters
    ----------
    is_shared : bool
        Whether there are several models; of one alone nothing is compared, which would take a second per gigabyte.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self._made: dict[bytes, object] | None = {} if is_shared else None

    def once(self, kind: str, weights: Sequence[Tensor | None], make: Callable[[], _Made]) -> _Made:
        """What `make` makes of these weights: what it made before, if they were the same, and so was `kind`."""
        if self._made is None:
            return make()
        key = _digest(kind, weights)
        if key not in self._made:
            self._made[key] = make()
        return cast(_Made, self._made[key])


def _digest(kind: str, weights: Sequence[Tensor | None]) -> bytes:
    digest = hashlib.blake2b(kind.encode(), digest_size=16)
    for weight in weights:
        if weight is None:
            digest.update(b"none")
            continue
        digest.update(f"{weight.dtype} {[*weight.shape]} ".encode())
        digest.update(weight.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.digest()
