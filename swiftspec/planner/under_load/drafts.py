"""Drafting in lockstep under an engine: what a round's draft forwards take, and what it brings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftspec.costmodel.steps import ComposedSteps, StepWork
from swiftspec.engines.words import Method
from swiftspec.models.heads import Product
from swiftspec.models.spec import ModelSpec
from swiftspec.planner.under_load.deployed import Deployed
from swiftspec.planner.under_load.served import Chains

__all__ = ["DraftModel", "chains_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """A draft on its target's devices.

    products: of a head's forwards, beside those of its layers. reads_target: whether it needs the target's hidden
    states of all the text. method: how engines call it.
    """

    spec: ModelSpec
    quant: str
    products: tuple[Product, ...] = ()
    reads_target: bool = False
    method: Method = Method.MODEL


def chains_of(
    deployed: Deployed,
    draft: DraftModel | None,
    *,
    forward_rows: Sequence[int],
    rows: int,
    tokens: npt.NDArray[np.int64],
) -> Chains:
    """What a simulation needs of a drafting method.

    Parameters
    ----------
    deployed : Deployed
        The target.
    draft : DraftModel or None
        None where text is looked up, which costs no forward.
    forward_rows : sequence of int
        Rows of every draft forward of a round, for one request.
    rows : int
        Rows of a verification, for one request.
    tokens : array of int
        Tokens of rounds, the bonus token included.
    """
    if draft is None:
        ahead = deployed.engine.drafts_ahead(Method.PROMPT_LOOKUP)
        return Chains(rows=rows, draft_s=lambda *_: 0.0, tokens=tokens, runs_ahead=ahead)
    steps = ComposedSteps(
        spec=draft.spec,
        kernels=deployed.steps.kernels,
        quant=draft.quant,
        degree=deployed.degree,
        collective=deployed.engine.collective,
        products=draft.products,
    )
    added_s = len(forward_rows) * draft.spec.num_layers * deployed.added.draft_layer_s

    def draft_s(requests: int, context: float) -> float:
        cached = int(requests * context)
        works = (
            StepWork(sequences=requests, rows_each=each, cache_tokens=cached, sampled=requests) for each in forward_rows
        )
        return added_s + sum(steps.seconds(work) for work in works)

    return Chains(
        rows=rows,
        draft_s=draft_s,
        tokens=tokens,
        cache_tokens=deployed.cache_tokens_beside(draft.spec, draft.quant),
        reads_target=draft.reads_target,
        runs_ahead=deployed.engine.drafts_ahead(draft.method),
    )
