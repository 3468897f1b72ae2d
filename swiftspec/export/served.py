"""Served plan: models, lengths and sizes that an engine is told to run, before its options are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from swiftspec.engines.words import LengthRange, Method
from swiftspec.policies import Policy
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.trees.eagle2 import Eagle2Tree

__all__ = ["Served"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Models, devices and policy of a server. Every `Value` of an engine's words is an attribute, None for none.

    Parameters
    ----------
    target : str
        Repository or directory.
    draft : str, optional
        The same of the draft; None if the policy has none, or it comes with the target.
    method : Method, optional
        How tokens are drafted; None if none are.
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
    written_schedule : object
        The same as the engine writes it.
    file : str, optional
        Name of the file of settings, if there are any.
    max_running : int, optional
        Requests at once.
    rates : tuple of float, optional
        Acceptance to imitate: shares of the rounds in which at least 1, 2, .. draft tokens are accepted.
    """

    target: str
    draft: str | None
    method: Method | None
    policy: Policy
    degree: int
    draft_degree: int
    dtype: str | None = None
    quantisation: Mapping[Role, str] = field(default_factory=dict)
    schedule: tuple[LengthRange, ...] = ()
    written_schedule: object = None
    file: str | None = None
    max_running: int | None = None
    rates: tuple[float, ...] | None = None

    @property
    def equal_parts(self) -> str:
        """`1,1` of two devices."""
        return ",".join(["1"] * self.degree)

    @property
    def target_fp8(self) -> str | None:
        return self._fp8(Role.TARGET)

    @property
    def draft_fp8(self) -> str | None:
        return self._fp8(Role.DRAFT)

    @property
    def other_draft_format(self) -> str | None:
        """The draft's format where it would inherit another one from the target."""
        if self.draft_fp8 and not self.target_fp8:
            return "fp8"
        return "unquant" if self.target_fp8 and Role.DRAFT not in self.quantisation else None

    def _fp8(self, role: Role) -> str | None:
        return "fp8" if self.quantisation.get(role) == "fp8" else None

    @property
    def num_draft_tokens(self) -> int:
        """Of a round, at most."""
        longest = max((each.num_draft_tokens for each in self.schedule), default=0)
        return longest or self.policy.target_rows - 1

    @property
    def levels(self) -> int:
        """Draft forwards of a round; one of EAGLE-2 adds one level."""
        return self.policy.depth + 1 if isinstance(self.policy, Eagle2Tree) else self.policy.target_rows - 1

    @property
    def width(self) -> int:
        """Tokens that follow one of a tree; 1 of a chain."""
        return self.policy.top_k if isinstance(self.policy, Eagle2Tree) else 1

    @property
    def match_and_draft(self) -> int | None:
        """Tokens of the longest match and of the draft after it."""
        lookup = self.policy
        return lookup.longest_match + lookup.num_draft_tokens if isinstance(lookup, PromptLookup) else None

    @property
    def rounded_rates(self) -> list[float] | None:
        return None if self.rates is None else [round(rate, 4) for rate in self.rates]

    @property
    def round_tokens(self) -> str | None:
        """Tokens of a round that is imitated, the bonus token included."""
        return None if self.rates is None else f"{1 + sum(self.rates):.4f}"

    @property
    def accepted_tokens(self) -> str | None:
        """The same without the bonus token."""
        return None if self.rates is None else f"{1 + sum(self.rates) - 1:.4f}"
