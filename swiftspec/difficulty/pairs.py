"""What difficulty to plan a pair with: fitted to its own published figures, or to those of the pair most like it."""

import json
from collections.abc import Sequence
from functools import cache
from math import log
from pathlib import Path
from typing import NamedTuple

from swiftspec.difficulty.process import Difficulty
from swiftspec.documents import Facts
from swiftspec.latency import Provenance
from swiftspec.registry.models import known_model

__all__ = ["Acceptance", "FittedPair", "acceptance_for", "dataset_names", "fitted_pairs"]

_TABLE = Path(__file__).with_name("fitted.json")

# A draft e times as large has a logit so much higher: Qwen3-32B with Qwen3-4B against 1.7B, mean of two data sets
# (tests/difficulty/test_pairs.py computes it again).
LOGIT_PER_SIZE = 0.75


class FittedPair(Facts):
    """One line of fitted.json: a difficulty fitted to a pair's published figures on one data set.

    Parameters
    ----------
    fitted : tuple of str
        Fields that the figures decided; the others are the prior's.
    to : str
        Those figures.
    residual : float
        Root mean square of what the fit misses: acceptance as a share, lengths relative.
    """

    target: str
    draft: str
    dataset: str
    difficulty: Difficulty
    fitted: tuple[str, ...]
    to: str
    residual: float


class Acceptance(NamedTuple):
    """A difficulty, one sentence about what it rests on, and how well that is known."""

    difficulty: Difficulty
    basis: str
    provenance: Provenance


@cache
def fitted_pairs() -> tuple[FittedPair, ...]:
    """Every fitted pair and data set."""
    return tuple(map(FittedPair.model_validate, json.loads(_TABLE.read_text(encoding="utf-8"))))


def acceptance_for(target: str, draft: str, dataset: str | None = None) -> Acceptance:
    """The difficulty of a pair on a data set, or on the mean of those that there are figures for.

    A pair without figures gets those of the pair most like it, moved by what a draft of its size is worth: `assumed`.

    Raises
    ------
    ValueError
        If the registry has no such model, their vocabularies differ, or the data set is unknown.
    """
    vocabularies = [known_model(name).vocabulary for name in (target, draft)]
    if vocabularies[0] != vocabularies[1]:
        raise ValueError(
            f"draft is {draft!r}, whose vocabulary is {vocabularies[1]}; {target} needs one of {vocabularies[0]}"
        )
    _check_dataset(dataset)
    own = _fits(target, draft, dataset)
    if own:
        return Acceptance(_mean(own), f"fitted to {_described(own)}", Provenance.PUBLISHED)
    nearest = min(_pairs(dataset), key=lambda pair: _unlikeness(pair, target, draft))
    fits = _fits(*nearest, dataset)
    size = log(_parameters(draft) / _parameters(nearest[1]))
    stand_in = _mean(fits)
    moved = stand_in.model_copy(update={"mean_logit": stand_in.mean_logit + LOGIT_PER_SIZE * size})
    where = f" on {dataset}" if dataset else ""
    basis = (
        f"no acceptance of {target} with {draft} is published{where}; {nearest[0]} with {nearest[1]} stands in, "
        f"fitted to {_described(fits)}, its logit moved by {LOGIT_PER_SIZE * size:+.2f} for the draft's size"
    )
    return Acceptance(moved, basis, Provenance.ASSUMED)


def dataset_names() -> list[str]:
    """Data sets that there are figures for, sorted."""
    return sorted({fit.dataset for fit in fitted_pairs()})


def _check_dataset(dataset: str | None) -> None:
    if dataset is not None and dataset not in dataset_names():
        raise ValueError(f"dataset is {dataset!r}; expected one of {', '.join(dataset_names())}")


def _fits(target: str, draft: str, dataset: str | None) -> list[FittedPair]:
    return [
        fit for fit in fitted_pairs() if (fit.target, fit.draft) == (target, draft) and dataset in (None, fit.dataset)
    ]


def _pairs(dataset: str | None) -> list[tuple[str, str]]:
    """Those with figures on this data set; in the order of the table."""
    return list(dict.fromkeys((fit.target, fit.draft) for fit in fitted_pairs() if dataset in (None, fit.dataset)))


def _unlikeness(pair: tuple[str, str], target: str, draft: str) -> tuple[bool, bool, float]:
    """Another target, another family, and how far both sizes are off, in this order; the least is the most alike."""
    sizes = sum(
        abs(log(_parameters(theirs) / _parameters(ours))) for theirs, ours in zip(pair, (target, draft), strict=True)
    )
    return pair[0] != target, known_model(pair[0]).vocabulary != known_model(target).vocabulary, sizes


def _parameters(name: str) -> int:
    return known_model(name).spec.num_parameters


def _mean(fits: Sequence[FittedPair]) -> Difficulty:
    """On all of these data sets together, equally many positions of each."""
    values = {name: sum(getattr(fit.difficulty, name) for fit in fits) / len(fits) for name in Difficulty.model_fields}
    return Difficulty(**values)


def _described(fits: Sequence[FittedPair]) -> str:
    datasets = ", ".join(fit.dataset for fit in fits)
    return f"{' and '.join(dict.fromkeys(fit.to for fit in fits))} on {datasets}"
