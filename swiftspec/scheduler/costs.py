"""Costs that controls weigh tokens against."""

from functools import lru_cache
from typing import Protocol

__all__ = ["CachedCosts", "RoundCosts"]


class RoundCosts(Protocol):
    """Seconds of a round's parts."""

    def verify_s(self, num_sequences: int, num_rows: int, /) -> float:
        """One verification, with the host's time around it. num_rows: of all sequences together."""

    def level_s(self, level: int, num_sequences: int, /) -> float:
        """The draft forward for so many sequences' rows of a level below the root, if the round waits for it.

        level: from 1. A chain has a row on every level.
        """


class CachedCosts:
    """Costs that are computed once each: a control compares hundreds of them in every round."""

    def __init__(self, costs: RoundCosts) -> None:
        self.verify_s = lru_cache(maxsize=None)(costs.verify_s)
        self.level_s = lru_cache(maxsize=None)(costs.level_s)
