"""Classes of requests: their shares, and which request is of which class."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from swiftspec.artifacts.workload import RequestClass
from swiftspec.files.reading import shown

__all__ = ["DEFAULT_CLASSES", "assign_classes", "check_classes", "shares_of"]

DEFAULT_CLASSES = (RequestClass(name="default"),)
_ROUNDING = 1e-9


def check_classes(classes: Sequence[RequestClass]) -> None:
    """ValueError if there is none, or if two have one name."""
    if not classes:
        raise ValueError("classes is empty; expected at least one")
    name, count = Counter(each.name for each in classes).most_common(1)[0]
    if count > 1:
        raise ValueError(f"classes has {shown(name)} {count} times; expected every name once")


def shares_of(classes: Sequence[RequestClass]) -> tuple[float, ...]:
    """Share of the requests that each class gets: its own, or an equal part of what the others leave.

    ValueError: if the shares do not add up to 1, or leave nothing for a class.
    """
    check_classes(classes)
    given = sum(each.share or 0.0 for each in classes)
    sharing = [each.name for each in classes if each.share is None]
    if given > 1 + _ROUNDING:
        raise ValueError(f"shares of classes add up to {given:g}; expected at most 1")
    if not sharing and given < 1 - _ROUNDING:
        raise ValueError(f"shares of classes add up to {given:g}; expected 1, or a class without a share")
    if sharing and given > 1 - _ROUNDING:
        raise ValueError(f"shares of classes add up to {given:g}, which leaves nothing for {sharing[0]}")
    return tuple((1 - given) / len(sharing) if each.share is None else each.share for each in classes)


def assign_classes(classes: Sequence[RequestClass], num_requests: int, rng: np.random.Generator) -> list[str]:
    """Names of classes, one for each request, in random order and in numbers as near to the shares as can be."""
    wanted = np.array(shares_of(classes)) * num_requests
    counts = np.floor(wanted).astype(int)
    largest_rests = np.argsort(counts - wanted, kind="stable")[: num_requests - int(counts.sum())]
    counts[largest_rests] += 1
    numbers = np.repeat(np.arange(len(classes)), counts)
    return [classes[number].name for number in rng.permutation(numbers).tolist()]
