"""Kinds of drafts to compare: those that users name, or all that there are for a target."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swiftspec.errors import FieldError
from swiftspec.models.heads import HEADS, Drafter
from swiftspec.models.published import known_model, model_names
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.policies import POLICIES, DraftKind, Layout, Policy
from swiftspec.policies.base import drafts_chain
from swiftspec.policies.effects import Role

if TYPE_CHECKING:
    from swiftspec.acceptance.given import GivenAcceptance

NONE, SUFFIX, OWN = "none", "suffix", "(own)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of draft: its name, the policies that can use it, and whether the draft has devices of its own."""

    name: str
    policies: tuple[str, ...]
    own_devices: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftInput:
    """A draft to compare, and its acceptance if the user gave it."""

    draft: str
    acceptance: "GivenAcceptance | None" = None


def kinds_of(name: str, kind: DraftKind, *, num_devices: int) -> list[Kind]:
    """What can be done with a draft of a kind on so many devices."""
    together = chain_for(kind), _suited(kind, _tree_in(Layout.COLOCATED))
    found = [Kind(name=name, policies=tuple(policy.name for policy in together if policy))]
    apart = _suited(kind, _tree_in(Layout.DISAGGREGATED))
    if apart is not None and num_devices > 1:
        found.append(Kind(name=f"{name} {OWN}", policies=(apart.name,), own_devices=True))
    return found


def chain_for(kind: DraftKind) -> type[Policy]:
    """The policy whose chains make most of a kind of draft."""
    found = _suited(kind, drafts_chain)
    assert found is not None, kind
    return found


def _tree_in(layout: Layout) -> Callable[[Policy], bool]:
    return lambda policy: policy.layout is layout and policy.verifies_trees and not policy.drafts_from_text


def _suited(kind: DraftKind, is_wanted: Callable[[Policy], bool]) -> type[Policy] | None:
    """Of the policies that take such a draft, the one that takes fewest plainer ones; of several the plainest."""
    plainer = set(list(DraftKind)[: list(DraftKind).index(kind)])
    taking = [policy for policy in POLICIES.values() if kind in policy.drafts and is_wanted(policy())]
    return min(taking, key=lambda policy: len(plainer & policy.drafts), default=None)


def asked_drafts(target: str, drafts: Sequence[str]) -> list[str]:
    """Drafts by name, `suffix` among them; without any, the smallest model, as a parallel draft, too, and all heads."""
    planned = PlannedModel.of(Role.TARGET, target)
    if not drafts:
        smallest = smallest_draft(planned)
        heads = [head for head in HEADS if head != Drafter.MTP or planned.spec.num_mtp_layers]
        return [*([smallest, f"pard:{smallest}"] if smallest else []), *heads]
    taken = [draft if draft == SUFFIX else planned.draft(draft).name for draft in drafts]
    if twice := next((name for name in taken if taken.count(name) > 1), None):
        raise FieldError("draft", f"{twice} twice", "expected different ones")
    return taken


def smallest_draft(target: PlannedModel) -> str | None:
    """The smallest registered model that can be a draft for a target, one of its own family if there is any."""
    fitting, family = fitting_drafts(target), target.name.partition("-")[0]
    own = [name for name in fitting if name.partition("-")[0] == family]
    return next(iter(own or fitting), None)


def fitting_drafts(target: PlannedModel) -> list[str]:
    """Registered models that can be drafts for a target, the smallest first."""
    fitting = [
        name
        for name in model_names()
        if target.vocabulary in (None, known_model(name).vocabulary)
        and known_model(name).spec.vocab_size == target.spec.vocab_size
        and known_model(name).spec.num_parameters < target.spec.num_parameters
    ]
    return sorted(fitting, key=lambda name: known_model(name).spec.num_parameters)
