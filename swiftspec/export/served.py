"""Served plan: model, lengths and sizes that an engine is told to run, before its options are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swiftspec.export.drafters import Drafter
from swiftspec.export.result import LengthRange
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role

__all__ = ["Command", "Served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Models, devices and policy of a server.

    Parameters
    ----------
    target : str
        Repository or directory.
    draft : str, optional
        The same of the draft; None if the policy has none, or it comes with the target.
    drafter : Drafter, optional
        None if the policy has no draft.
    policy : Policy
        One that the engine can run.
    degree, draft_degree : int
        Devices that divide each model.
    dtype : str, optional
        Of weights that are not quantised, `bfloat16`; the checkpoint's own if None.
    quantisation : mapping
        `fp8`, `int8` or `int4` by role; roles without any are left out.
    schedule : tuple of LengthRange
        Draft tokens by requests at once; empty if their number is fixed.
    max_running : int, optional
        Requests at once.
    rates : tuple of float, optional
        Acceptance to imitate: shares of the rounds in which at least 1, 2, .. draft tokens are accepted.
    """

    target: str
    draft: str | None
    drafter: Drafter | None
    policy: Policy
    degree: int
    draft_degree: int
    dtype: str | None = None
    quantisation: Mapping[Role, str] = field(default_factory=dict)
    schedule: tuple[LengthRange, ...] = ()
    max_running: int | None = None
    rates: tuple[float, ...] | None = None

    @property
    def num_draft_tokens(self) -> int:
        """Of a round, at most."""
        longest = max((each.num_draft_tokens for each in self.schedule), default=0)
        return longest or self.policy.target_rows - 1

    @property
    def acceptance_length(self) -> float | None:
        """Tokens of a round that is imitated, the bonus token included."""
        return None if self.rates is None else 1 + sum(self.rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A server's command line; fields as of `Export`."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    schedule: tuple[LengthRange, ...] = ()
    not_expressed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
