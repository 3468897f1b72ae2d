"""TP degrees that the user and the serving engine allow, and what the draft does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from swiftspec.engines import Engine
from swiftspec.engines.words import Method
from swiftspec.export.nearest import has_policy
from swiftspec.models.spec import ModelSpec
from swiftspec.planner.search.option import Option
from swiftspec.policies import Layout, Policy
from swiftspec.policies.base import drafts_elsewhere
from swiftspec.policies.effects import Role

if TYPE_CHECKING:
    from swiftspec.planner.deployment import Deployment
    from swiftspec.planner.planned_model import PlannedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedDegrees:
    """A rule for the TP degree of every group.

    sizes: the allowed degrees; any if not given.
    engine: an engine that serves: degrees are those that it divides the models by.
    drafter: what the draft is for the engine, which has to have a policy to search it.
    draft_server: whether there are devices for a draft server beside the engine's.
    chains_only: whether verifications have to be chains, as of the engine's loads.
    specs: shapes of the models, where they are divided. Sparse ones can be divided into equal parts only.
    block_tokens: most tokens that a block drafter proposes at once; 0 where nothing bounds them.
    """

    sizes: frozenset[int] | None = None
    engine: Engine | None = None
    drafter: Method = Method.MODEL
    draft_server: bool = False
    chains_only: bool = False
    specs: Mapping[Role, ModelSpec] = field(default_factory=dict)
    block_tokens: int = 0

    @classmethod
    def of(
        cls,
        deployment: "Deployment",
        target: "PlannedModel",
        draft: "PlannedModel",
        *,
        sizes: frozenset[int] | None,
        chains_only: bool,
    ) -> Self:
        """Those of a deployment with a pair of models."""
        return cls(
            sizes=sizes,
            engine=deployment.served_by,
            drafter=draft.method,
            draft_server=bool(deployment.draft_device),
            chains_only=chains_only,
            specs={Role.TARGET: target.spec, Role.DRAFT: draft.spec},
            block_tokens=draft.block_tokens,
        )

    def objection(self, option: Option) -> str | None:
        """Reason why an option's groups are not allowed; None if they are."""
        if self.engine is not None and (lacking := self._lacking(self.engine, option.policy)) is not None:
            return f"{option.policy.name}: {self.engine.full_name} {lacking}"
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
            if self.engine is not None and role in self.specs and not self.engine.divides(self.specs[role], degree):
                name = self.engine.full_name
                return f"{option.policy.name}: {name} cannot divide the {role}'s heads by {degree}"
        return None

    def _lacking(self, engine: Engine, policy: Policy) -> str | None:
        """What of a policy the engine does not have, the rest of a sentence; None if it has it."""
        if policy.layout is Layout.DISAGGREGATED and not self.draft_server:
            known = Method.DRAFT_SERVER in engine.methods and drafts_elsewhere(policy)
            return f"has no draft on devices of its own{', unless --draft-device names some' if known else ''}"
        if policy.verifies_trees and (self.chains_only or not engine.eagle2_trees):
            return "verifies chains"
        return None if has_policy(engine, policy, self.drafter) else "does not draft so"


ANY_DEGREES: Final = AllowedDegrees()
