"""TP degrees that the user and the serving engine allow, and what the draft does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from swiftspec.engines import Engine
from swiftspec.models.spec import ModelSpec
from swiftspec.planner.search.option import Option
from swiftspec.policies import Layout
from swiftspec.policies.effects import Role

__all__ = ["ANY_DEGREES", "AllowedDegrees"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedDegrees:
    """A rule for the TP degree of every group.

    Parameters
    ----------
    sizes : frozenset of int, optional
        The allowed degrees; any if not given.
    engine : Engine, optional
        An engine that serves: degrees are those that it divides the models by.
    chains_only : bool
        Whether models have to share devices and verifications to be chains, as the serving engine has it.
    specs : mapping
        Shapes of the models, needed with `engine`. Sparse ones can be divided into equal parts only.
    block_tokens : int
        Most tokens that a block drafter proposes at once; 0 where nothing bounds them.
    """

    sizes: frozenset[int] | None = None
    engine: Engine | None = None
    chains_only: bool = False
    specs: Mapping[Role, ModelSpec] = field(default_factory=dict)
    block_tokens: int = 0

    def objection(self, option: Option) -> str | None:
        """Reason why an option's groups are not allowed; None if they are."""
        name = self.engine.full_name if self.engine else "the engine"
        if self.chains_only and option.policy.layout is Layout.DISAGGREGATED:
            return f"{option.policy.name}: {name} has no draft on devices of its own"
        if self.chains_only and option.policy.verifies_trees:
            return f"{option.policy.name}: {name} verifies chains"
        is_drafted = option.policy.layout is not Layout.TARGET_ONLY
        if is_drafted and 0 < self.block_tokens < option.policy.draft_levels:
            return f"{option.policy.name}: the draft's blocks have {self.block_tokens} tokens"
        for role in (Role.TARGET,) if option.policy.layout is Layout.TARGET_ONLY else tuple(Role):
            degree = option.degree(role)
            if self.sizes is not None and degree not in self.sizes:
                allowed = ", ".join(map(str, sorted(self.sizes)))
                return f"{option.policy.name}: a group's size is not one of those allowed, {allowed}"
            if role in self.specs and (reason := self.specs[role].objection(degree)) is not None:
                return f"{option.policy.name}: of the {role}, {reason}"
            if self.engine is not None and not self.engine.divides(self.specs[role], degree):
                return f"{option.policy.name}: {name} cannot divide the {role}'s heads by {degree}"
        return None


ANY_DEGREES: Final = AllowedDegrees()
