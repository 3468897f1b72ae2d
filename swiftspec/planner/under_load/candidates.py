"""An engine that serves a pair of models, and how it drafts what rounds of its draft show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from swiftspec.devices import DeviceSpec
from swiftspec.engines.description import Engine
from swiftspec.models.spec import ModelSpec
from swiftspec.planner.under_load.deployed import Deployed
from swiftspec.planner.under_load.drafts import DraftModel, chains_of
from swiftspec.planner.under_load.rounds import Round
from swiftspec.planner.under_load.served import Chains

__all__ = ["ServingEngine", "chains_from"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEngine:
    """An engine, and the pair of models that it serves.

    Parameters
    ----------
    engine : Engine
    settings : mapping of str to str
        The user's limits, by the engine's words.
    device : DeviceSpec
    target : ModelSpec
    quant : str
        Format of the target's weights.
    draft : DraftModel
    """

    engine: Engine
    settings: Mapping[str, str] = field(default_factory=dict)
    device: DeviceSpec
    target: ModelSpec
    quant: str
    draft: DraftModel

    def deployed(self, degree: int, *, context: int) -> Deployed:
        """The target on a group of devices; context: tokens of the longest request."""
        return Deployed(
            engine=self.engine,
            device=self.device,
            degree=degree,
            spec=self.target,
            quant=self.quant,
            settings=self.settings,
            context=context,
        )

    @property
    def step_tokens(self) -> int:
        """Tokens of a step, at most."""
        return self.engine.limits(self.device, self.settings).step_tokens

    def described(self) -> str:
        """The engine and the limits of its steps, a clause."""
        limits = self.engine.limits(self.device, self.settings)
        graphs = f", graphs up to {limits.captured_tokens}" if limits.captured_tokens else ""
        ahead = "formed while one runs" if limits.runs_ahead else "formed after the one before"
        return (
            f"{self.engine.described()} with steps of at most {limits.step_tokens} tokens and {limits.requests} "
            f"requests, {ahead}{graphs}"
        )


def chains_from(rounds: Sequence[Round], deployed: Deployed, draft: DraftModel) -> Chains | None:
    """Drafting in lockstep, as recorded rounds have it; None for plain decoding."""
    rows = round(fmean(one.verify_rows for one in rounds))
    if rows <= 1:
        return None
    levels = max(len(one.draft_rows) for one in rounds)
    width = [
        round(fmean(one.draft_rows[level] for one in rounds if level < len(one.draft_rows))) for level in range(levels)
    ]
    return chains_of(
        deployed,
        draft if levels else None,
        forward_rows=width,
        rows=rows,
        tokens=np.array([one.tokens for one in rounds]),
    )
