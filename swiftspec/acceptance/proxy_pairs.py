"""Choice of a pair's acceptance model: fitted to its own published figures, or to those of a proxy pair.

A comparison of drafts must not depend on which of them happens to be published. So a target has one reference: its own
published pairs or, if it has none, those of the most similar target, on one mix of data sets. The logit of every draft
is derived from the reference by the draft's size, and a larger draft is never worse.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path
from typing import NamedTuple

import numpy as np

from swiftspec.acceptance.model import AcceptanceModel
from swiftspec.acceptance.texts import of_text
from swiftspec.errors import FieldError
from swiftspec.files.document import Facts
from swiftspec.models.published import Named, known_model, likely_vocabulary
from swiftspec.timing.latency import Provenance

_TABLE = Path(__file__).with_name("fitted.json")

# Logit gained by a draft e times as large: Qwen3-32B with Qwen3-4B against 1.7B, mean of two data sets
# (tests/acceptance/test_proxy_pairs.py computes it again).
LOGIT_PER_SIZE = 0.75

# Data sets of a single kind of text, and that kind. The others (MT-Bench, Alpaca) hold requests of many kinds.
_NARROW = {
    "InstructCoder": "code editing, where much of the output is copied from the prompt",
    "C4": "continued web pages",
    "CNN/DailyMail": "summaries of news",
    "GSM8K": "school mathematics",
    "HumanEval": "short Python functions",
    "Natural Questions": "short questions of fact",
}


class FittedPair(Facts):
    """One line of fitted.json: an acceptance model fitted to a pair's published figures on one data set."""

    target: str
    draft: str
    dataset: str
    acceptance_model: AcceptanceModel
    fitted: tuple[str, ...]  # fields that the figures determined; the others are the prior's
    to: str  # the figures
    residual: float  # root mean square of the residuals: acceptance as a share, lengths relative


class Acceptance(NamedTuple):
    """An acceptance model, one sentence about its source, and its provenance."""

    acceptance_model: AcceptanceModel
    basis: str
    provenance: Provenance
    # That it is known for one narrow kind of text only; empty otherwise, or if that text was requested
    warning: str = ""


@cache
def fitted_pairs() -> tuple[FittedPair, ...]:
    return tuple(map(FittedPair.model_validate, json.loads(_TABLE.read_text(encoding="utf-8"))))


def dataset_names() -> list[str]:
    """Data sets with figures, sorted."""
    return sorted({fit.dataset for fit in fitted_pairs()})


def acceptance_for(target: str | Named, draft: str | Named, dataset: str | None = None) -> Acceptance:
    """The model of a pair on a data set, or on the mean of those in its target's reference.

    `published` if the pair is part of that reference, else `assumed`.

    target, draft: a name of the registry, or any model whose shape is known. dataset: or a class of text; of a data set
    without figures those of its class are taken.

    ValueError: if the registry has no such model, the vocabularies of two models in it differ, or no data set of that
    class has figures.
    """
    theirs, ours = (known_model(model) if isinstance(model, str) else model for model in (target, draft))
    if theirs.vocabulary and ours.vocabulary and theirs.vocabulary != ours.vocabulary:
        raise FieldError(
            "draft",
            f"{ours.name!r}, whose vocabulary is {ours.vocabulary}",
            f"{theirs.name} needs one of {theirs.vocabulary}",
        )
    if not of_text(fitted_pairs(), dataset, lambda fit: fit.dataset):
        known = ", ".join(dataset_names())
        raise FieldError("dataset", repr(dataset), f"expected one of {known}, or one of their classes")
    reference = _Reference.of(theirs, dataset)
    warning = reference.warning if dataset is None else ""
    if reference.target == theirs.name and ours.name in reference.drafts:
        return Acceptance(
            reference.fitted(ours.name), f"fitted to {reference.described}", Provenance.PUBLISHED, warning
        )
    where = f" on {dataset}" if dataset else ""
    published = [fit.dataset for fit in fitted_pairs() if (fit.target, fit.draft) == (theirs.name, ours.name)]
    if published:
        where += f" on {', '.join(reference.datasets)} (but on {', '.join(published)})"
    size = ours.spec.num_parameters
    nearest = min(reference.drafts, key=lambda name: abs(log(_num_parameters(name) / size)))
    model = reference.at_size(size)
    moved = model.mean_logit - reference.fitted(nearest).mean_logit
    basis = (
        f"no acceptance of {theirs.name} with {ours.name} is published{where}; {reference.target} with {nearest} "
        f"stands in, fitted to {reference.described}, its logit moved by {moved:+.2f} for the draft's size"
    )
    return Acceptance(model, basis, Provenance.ASSUMED, warning)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """Published pairs of one target that all have figures on the same data sets."""

    target: str
    drafts: tuple[str, ...]  # at least one, sorted by size
    datasets: tuple[str, ...]

    @classmethod
    def of(cls, target: Named, dataset: str | None) -> "_Reference":
        """Reference from the target's own pairs, or from those of the most similar target if it has none."""
        fits = of_text(fitted_pairs(), dataset, lambda fit: fit.dataset)
        nearest = min(dict.fromkeys(fit.target for fit in fits), key=lambda name: _unlikeness(name, target))
        by_draft: dict[str, list[str]] = {}
        for fit in fits:
            if fit.target == nearest:
                by_draft.setdefault(fit.draft, []).append(fit.dataset)
        widest = max(by_draft.values(), key=len)
        shared = [name for name in widest if all(name in others for others in by_draft.values())] or widest
        drafts = [draft for draft, names in by_draft.items() if set(shared) <= set(names)]
        return cls(target=nearest, drafts=tuple(sorted(drafts, key=_num_parameters)), datasets=tuple(shared))

    def fitted(self, draft: str) -> AcceptanceModel:
        """Model on all of the data sets together, with equally many positions of each."""
        fits = [fit.acceptance_model for fit in self._fits if fit.draft == draft]
        return AcceptanceModel(**{name: sum(getattr(fit, name) for fit in fits) / len(fits) for name in _FIELDS})

    def at_size(self, num_parameters: int) -> AcceptanceModel:
        """Model of a draft of this size: linear in log size within the reference; beyond, by the logit per size."""
        sizes = [log(_num_parameters(draft)) for draft in self.drafts]
        fits = [self.fitted(draft) for draft in self.drafts]
        size = log(num_parameters)
        values = {name: float(np.interp(size, sizes, [getattr(fit, name) for fit in fits])) for name in _FIELDS}
        beyond = size - min(max(size, sizes[0]), sizes[-1])
        # Even if figures say that a larger draft is worse, the curve does not fall.
        logits = np.maximum.accumulate([fit.mean_logit for fit in fits])
        values["mean_logit"] = float(np.interp(size, sizes, logits)) + LOGIT_PER_SIZE * beyond
        return AcceptanceModel(**values)

    @property
    def described(self) -> str:
        """The figures and their data sets."""
        return f"{' and '.join(dict.fromkeys(fit.to for fit in self._fits))} on {', '.join(self.datasets)}"

    @property
    def warning(self) -> str:
        """Empty unless all data sets are of the same narrow kind of text."""
        if len(self.datasets) > 1 or self.datasets[0] not in _NARROW:
            return ""
        (dataset,) = self.datasets
        return f"known only on {dataset} ({_NARROW[dataset]}); expect another one on other text"

    @property
    def _fits(self) -> Sequence[FittedPair]:
        return [
            fit
            for fit in fitted_pairs()
            if fit.target == self.target and fit.draft in self.drafts and fit.dataset in self.datasets
        ]


_FIELDS = tuple(AcceptanceModel.model_fields)


def _unlikeness(name: str, target: Named) -> tuple[bool, bool, float]:
    """Distance of a published target from another one: same model, same family, size; the smallest is the most similar.

    Size is a sum of log ratios: of sizes; within a family of contexts, which distinguish generations of one size (Llama
    3 and 3.1); and of a factor of two if all figures are of one narrow kind of text.
    """
    known = known_model(name)
    is_other_family = known.vocabulary != (target.vocabulary or likely_vocabulary(target.spec))
    distance = abs(log(known.spec.num_parameters / target.spec.num_parameters))
    if not is_other_family:
        distance += abs(log(known.spec.max_position / target.spec.max_position))
    datasets = {fit.dataset for fit in fitted_pairs() if fit.target == name}
    if len(datasets) == 1 and datasets <= _NARROW.keys():
        distance += log(2)
    return name != target.name, is_other_family, distance


def _num_parameters(name: str) -> int:
    return known_model(name).spec.num_parameters
