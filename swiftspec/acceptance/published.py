"""Published acceptance: figures as printed in their sources, each with shape, data set, hardware and source.

A model has its registered name if there is one, otherwise the source's. Figures are facts; one source
(tomasruizt/vllm-scripts) has no licence, and only figures are taken from it.
"""

import json
from enum import StrEnum
from functools import cache
from pathlib import Path

from swiftspec.files.document import Facts

__all__ = ["PublishedAcceptance", "Quantity", "acceptance_of", "published_acceptance"]

_TABLE = Path(__file__).with_name("published.json")


class Quantity(StrEnum):
    """Quantity that the values of a record measure."""

    CUMULATIVE_ACCEPTANCE = "cumulative_acceptance"  # by position: share of rounds that accepted this far
    CUMULATIVE_RANK_ACCEPTANCE = "cumulative_rank_acceptance"  # by rank: share of tokens among the draft's first r
    MEAN_LENGTH = "mean_length"  # tokens per verification


class PublishedAcceptance(Facts):
    """One published vector or figure; greedy decoding throughout.

    shape: drafted shape: a chain, a tree.
    bonus: whether a length counts the bonus token; None if the source does not say.
    hardware: empty if the source does not say.
    verified: when the values were compared with the source again, and what was read then; empty if never.
    """

    target: str
    draft: str
    shape: str
    dataset: str
    quantity: Quantity
    bonus: bool | None
    values: tuple[float, ...]
    hardware: str
    source: str
    note: str
    verified: str = ""


@cache
def published_acceptance() -> tuple[PublishedAcceptance, ...]:
    """Every record."""
    return tuple(map(PublishedAcceptance.model_validate, json.loads(_TABLE.read_text(encoding="utf-8"))))


def acceptance_of(target: str, draft: str, dataset: str | None = None) -> list[PublishedAcceptance]:
    """Records of a pair, on one data set or all."""
    return [
        record
        for record in published_acceptance()
        if (record.target, record.draft) == (target, draft) and dataset in (None, record.dataset)
    ]
