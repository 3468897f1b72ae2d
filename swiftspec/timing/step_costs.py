"""Costs of a policy's steps by sequences and rows, from a profile: what controls weigh tokens against."""

from collections.abc import Mapping
from typing import Annotated, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from swiftspec.files.document import Facts
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import Role
from swiftspec.timing.step_key import StepKey
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Phase

_ROWS = (*range(1, 9), 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 160, 192, 256, 384, 512)
_Seconds = Annotated[float, Field(ge=0)]


class ForwardCost(Facts):
    """Seconds of a model's forward by its rows: linear between the known ones, and beyond the last one.

    rows: ascending, from 1. seconds: of a forward of one sequence with so many rows. sequence_s: what each sequence
    beyond the first adds.
    """

    rows: tuple[int, ...] = Field(min_length=1)
    seconds: tuple[_Seconds, ...]
    sequence_s: _Seconds = 0.0
    _dense: tuple[float, ...] = PrivateAttr()  # by rows, from 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rows[0] != 1 or list(self.rows) != sorted(set(self.rows)):
            raise ValueError(f"rows are {self.rows}; expected ascending numbers from 1")
        if len(self.seconds) != len(self.rows):
            raise ValueError(f"seconds are {self.seconds}; expected {len(self.rows)} of them")
        self._dense = tuple(np.interp(range(1, self.rows[-1] + 1), self.rows, self.seconds).tolist())
        return self

    def __call__(self, num_sequences: int, num_rows: int) -> float:
        """Seconds of a forward over the rows of some sequences."""
        known = len(self._dense)
        alone_s = self._dense[min(num_rows, known) - 1] + max(0, num_rows - known) * self._slope_s
        return alone_s + (num_sequences - 1) * self.sequence_s

    @property
    def _slope_s(self) -> float:
        if len(self.rows) == 1:
            return 0.0
        return max(0.0, (self.seconds[-1] - self.seconds[-2]) / (self.rows[-1] - self.rows[-2]))


class StepCosts(Facts):
    """Costs of the steps of a policy on its devices.

    verify: of the target. draft: of the draft, if rounds wait for it. draft_rows: rows of a request in one draft
    forward. num_levels: draft forwards of a round, at most. verify_host_s, draft_host_s: the host's time around each
    with one request. host_share: share of it that each further request adds.
    context: tokens in a request's cache for which these costs are. token_s: what one more there adds to a verification,
    for the first request and for each further one.
    """

    verify: ForwardCost
    draft: ForwardCost | None = None
    draft_rows: int = Field(default=1, ge=1)
    num_levels: int = Field(default=0, ge=0)
    verify_host_s: _Seconds = 0.0
    draft_host_s: _Seconds = 0.0
    host_share: _Seconds = 0.0
    context: int = Field(default=0, ge=0, exclude_if=lambda context: context == 0)
    token_s: tuple[_Seconds, _Seconds] = Field(default=(0.0, 0.0), exclude_if=lambda token_s: not any(token_s))

    @classmethod
    def of(
        cls,
        policy: Policy,
        latencies: Latencies,
        *,
        degrees: Mapping[Role, int],
        ranks: Mapping[Role, int],
        context: int,
    ) -> Self:
        """Costs of a policy by a profile's latencies.

        degrees, ranks: devices of each role's group, and the processes that divide them. context: tokens of a request's
        text, on average.
        """

        def key(role: Role, phase: Phase) -> StepKey:
            beside = policy.layout is Layout.DISAGGREGATED
            return StepKey(role, phase, degrees[role], 1, context, ranks=ranks.get(role, 1), peer_busy=beside)

        def further_s(one: StepKey) -> float:
            return latencies.further_sequences(one._replace(sequences=2))[0]

        def forward(one: StepKey) -> ForwardCost:
            means_s = [latencies.step(one._replace(rows=rows)).mean_s for rows in _ROWS]
            return ForwardCost(rows=_ROWS, seconds=tuple(means_s), sequence_s=further_s(one))

        def host_s(*phases: Phase) -> float:
            found = [latencies.host_latency(phase, policy=policy.name) for phase in phases]
            return sum(latency.mean_s for latency in found if latency is not None)

        here = key(Role.TARGET, Phase.VERIFY)
        token_s = 0.0, 0.0
        if context:
            there = here._replace(context=2 * context)
            added_s = latencies.step(there).mean_s - latencies.step(here).mean_s, further_s(there) - further_s(here)
            token_s = max(0.0, added_s[0] / context), max(0.0, added_s[1] / context)
        waits = policy.serial_forwards > 0
        return cls(
            context=context,
            token_s=token_s,
            verify=forward(here),
            draft=forward(key(Role.DRAFT, Phase.FUZZY if policy.fuzzy else Phase.EXPAND)) if waits else None,
            draft_rows=max(1, policy.expand_rows) if policy.num_candidates > 1 else 1,
            num_levels=policy.serial_forwards,
            verify_host_s=host_s(Phase.VERIFY, Phase.COMMIT, Phase.COMPACT),
            draft_host_s=host_s(Phase.EXPAND) if waits else 0.0,
            host_share=latencies.host_share,
        )

    def verify_s(self, num_sequences: int, num_rows: int) -> float:
        """One verification, with the host's time around it."""
        return self.verify(num_sequences, num_rows) + self.verify_host_s * self._hosts(num_sequences)

    def cache_s(self, num_sequences: int, num_tokens: int) -> float:
        """What a verification takes longer for so many tokens in all caches than for the usual context."""
        first_s, further_s = self.token_s
        return (num_tokens / num_sequences - self.context) * (first_s + (num_sequences - 1) * further_s)

    def level_s(self, level: int, num_sequences: int) -> float:
        """The draft forward of a level; nothing for the rows of a tree that need none of their own."""
        if self.draft is None or level > self.num_levels:
            return 0.0
        forward_s = self.draft(num_sequences, num_sequences * self.draft_rows)
        return forward_s + self.draft_host_s * self._hosts(num_sequences)

    def _hosts(self, num_sequences: int) -> float:
        return 1 + (num_sequences - 1) * self.host_share
