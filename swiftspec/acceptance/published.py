"""Published acceptance: figures as their sources print them, each with shape, data set, hardware and source.

A model is named as in the registry where it is there, otherwise as its source names it. Figures are facts; one source
(tomasruizt/vllm-scripts) has no licence, and nothing but figures is taken from it.
"""

import json
from enum import StrEnum
from functools import cache
from pathlib import Path

from swiftspec.artifacts.document import Facts
from swiftspec.models.published import known_model, model_names

__all__ = ["PublishedAcceptance", "Quantity", "acceptance_of", "published_acceptance", "relatives_of"]

_TABLE = Path(__file__).with_name("published.json")


class Quantity(StrEnum):
    """Quantity that the values of a record measure."""

    CUMULATIVE_ACCEPTANCE = "cumulative_acceptance"  # by position: share of rounds that accepted so many tokens
    CUMULATIVE_RANK_ACCEPTANCE = "cumulative_rank_acceptance"  # by rank: token among the draft's first so many
    MEAN_LENGTH = "mean_length"  # tokens per verification


class PublishedAcceptance(Facts):
    """One published vector or figure; greedy decoding throughout.

    Parameters
    ----------
    shape : str
        What was drafted: a chain, a tree.
    bonus : bool, optional
        Whether a length counts the bonus token; None where the source does not say.
    hardware : str
        Empty where the source does not say.
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


def relatives_of(target: str) -> list[PublishedAcceptance]:
    """Records of pairs that share the target's vocabulary, and so its family. ValueError for an unknown target."""
    vocabulary, known = known_model(target).vocabulary, set(model_names())
    return [
        record
        for record in published_acceptance()
        if record.target in known and known_model(record.target).vocabulary == vocabulary
    ]
