"""Count of the experts that the measured verifications touch: the same rows are routed once more, without a clock.

A profile's forwards run in an engine's processes, which answer with times only. Time does not depend on the text of a
dense model; that of a sparse one depends on the experts that its rows need.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np
import torch

from swiftspec.artifacts.routes import ExpertsTouched, TouchedPoint
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.files.document import ModelRef
from swiftspec.models.layer_parts import Experts
from swiftspec.policies import Request
from swiftspec.policies.effects import ForwardKind
from swiftspec.profiler.programs import verified_rows

__all__ = ["experts_touched"]

_TURNS = 4  # of other tokens, for each prompt and number of rows


@torch.inference_mode()
def experts_touched(
    target: ModelRef, experts: Experts, prompts: Sequence[tuple[int, ...]], row_counts: Sequence[int]
) -> ExpertsTouched:
    """Mean experts of a layer that verifications touch after these prompts, for every number of rows.

    The model is loaded into this process meanwhile.
    """
    model = ModelRunner.load(target, max_context=max(map(len, prompts)), tree_slots=max(row_counts))
    counts: dict[int, list[int]] = {rows: [] for rows in sorted(row_counts)}
    for prompt in prompts:
        model.reset(0)
        model.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, prompt),)))
        for rows, found in counts.items():
            for turn in range(_TURNS):
                chain = verified_rows(Request(prompt=prompt, max_new_tokens=1), rows, turn=turn)
                model.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, chain),)))
                routes = model.routes()
                assert routes is not None, "the target has experts"
                found += [len(np.unique(layer)) for layer in routes.numpy()]
                model.keep(0, (), 0)
    return ExpertsTouched(
        num_experts=experts.num_experts,
        num_active=experts.num_active,
        points=tuple(TouchedPoint(rows=rows, experts=mean(found)) for rows, found in counts.items()),
    )
