"""Division of a model's layers: into groups for layer-parallel forwards, into halves for early exits."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

_LAYERS_PER_GROUP = 4  # EasySpec's choice (arXiv 2502.02493): with more, the layers' inputs differ too much


def layer_groups(layers: Sequence[T]) -> list[Sequence[T]]:
    """The first layer alone, the others in groups; the last one alone too, if that leaves two for a group."""
    inner, last = (layers[1:-1], layers[-1:]) if len(layers) > 3 else (layers[1:], ())
    groups = [inner[first : first + _LAYERS_PER_GROUP] for first in range(0, len(inner), _LAYERS_PER_GROUP)]
    return [group for group in (layers[:1], *groups, last) if group]


def halves(layers: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """The layers before an early exit, and those after it."""
    middle = len(layers) // 2
    return layers[:middle], layers[middle:]
