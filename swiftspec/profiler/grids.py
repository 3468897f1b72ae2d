"""Grid of a CPU profile: row counts, contexts, repetitions, and the policies that are run for host costs."""

from dataclasses import fields, replace
from itertools import islice
from typing import Any, cast

from swiftspec.policies import DraftKind, Layout, Policy, policy_classes

# With both sides of a full tile of rows, 6 or 12 of them (`MOST_ROWS` in kernels/cpu/linear.hpp): there times jump.
TARGET_ROWS = (1, 2, 4, 6, 7, 8, 12, 13, 16, 24, 32)
DRAFT_ROWS = (1, 2, 4, 8, 12, 24)
HALVES_ROWS = (2, 4, 6, 8, 12)
CONTEXTS = (16, 64, 256, 640)
LONGEST_SHARED = 256  # context of steps of several sequences: all of them have to be prefilled
REPEATS = 3
SWEEP_REPEATS = 6  # forwards of each size, one after another, per pass and context
# Applying the draft temperature of a plan to every candidate costs the host time.
_FITTED = 0.5
HOST_TOKENS = 48


def host_shapes(layout: Layout, kind: DraftKind = DraftKind.SERIAL, *, all_shapes: bool = True) -> list[Policy]:
    """Shapes whose host costs a profile measures, of the policies that a bench of this layout runs with such a draft.

    Of every policy, since programs differ in what they do between forwards; but for those that need several groups.

    all_shapes: every policy's, or its first one only.
    """
    layouts = {layout, Layout.TARGET_ONLY} if layout is Layout.COLOCATED else {layout}
    most = None if all_shapes else 1
    found = (
        shape
        for policy in policy_classes(None)
        if policy.layout in layouts
        for shape in islice(policy.host_shapes(), most)
    )
    return [_as_planned(shape) for shape in found if kind in shape.drafts and shape.target_groups == 1]


def most_host_shapes(*, all_shapes: bool = True) -> int:
    """Shapes of the layout that has most of them."""
    return max(len(host_shapes(layout, all_shapes=all_shapes)) for layout in (Layout.COLOCATED, Layout.DISAGGREGATED))


def _as_planned(shape: Policy) -> Policy:
    has_temperature = any(field.name == "draft_temperature" for field in fields(cast(Any, shape)))
    return replace(cast(Any, shape), draft_temperature=_FITTED) if has_temperature else shape
