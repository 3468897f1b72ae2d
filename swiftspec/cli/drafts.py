"""Choice of a draft: one plan if one draft is named, otherwise a plan for each and the best of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.cli.sections import show
from swiftspec.models import known_model, model_names
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.policies import Layout, policy_class, policy_names
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import speed
from swiftspec.reports.model import Row, Section, Table, numbers, texts

if TYPE_CHECKING:
    from swiftspec.acceptance import GivenAcceptance

__all__ = ["Draft", "Drafts", "best_draft", "named_drafts", "recorded_draft", "show_drafts"]

_NO_DRAFT = (
    "--draft is missing; only --policy autoregressive, --policy prompt_lookup and --policy suffix_decoding can be "
    "planned without one"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A draft to plan with, and its acceptance if the user gave it."""

    name: str
    acceptance: "GivenAcceptance | None" = None


# A plan for each draft, or the reason that there is none.
Drafts = Mapping[str, Planned | ValueError]


def named_drafts(target: str, drafts: Sequence[str], acceptance: Sequence[str], policy: str | None) -> list[Draft]:
    """Drafts that flags name; without any, the smallest one, for policies that do not use it.

    ValueError: naming the flag: a draft is missing or named twice, or acceptance is given for some drafts only.
    """
    if not drafts:
        drafts = [_unused_draft(target, policy)]
    planned = PlannedModel.of(Role.TARGET, target)
    taken = [planned.draft(draft).name for draft in drafts]
    if twice := next((name for name in taken if taken.count(name) > 1), None):
        raise ValueError(f"--draft is {twice} twice; expected different models")
    if not acceptance:
        return [Draft(name=name) for name in drafts]
    if len(acceptance) != len(drafts):
        raise ValueError(
            f"--acceptance is given {len(acceptance)} times and --draft {len(drafts)} times; "
            "expected one for each draft, in the same order"
        )
    from swiftspec.acceptance import GivenAcceptance

    given = [GivenAcceptance.parse(text, field="--acceptance") for text in acceptance]
    return [Draft(name=name, acceptance=rates) for name, rates in zip(drafts, given, strict=True)]


def recorded_draft(drafts: Sequence[str], policy: str | None, profile: Path) -> str:
    """The one draft of a plan for this machine; if none is given, the profile's, for policies that do not use it."""
    if len(drafts) > 1:
        raise ValueError(f"--draft is given {len(drafts)} times; several need --device, since a profile holds one pair")
    if drafts:
        return drafts[0]
    _check_unused(policy)
    return Profile.load(profile).draft.model


def _unused_draft(target: str, policy: str | None) -> str:
    _check_unused(policy)
    planned = PlannedModel.of(Role.TARGET, target)
    fitting = [
        name
        for name in model_names()
        if planned.vocabulary in (None, known_model(name).vocabulary)
        and known_model(name).spec.vocab_size == planned.spec.vocab_size
        and known_model(name).spec.num_parameters < planned.spec.num_parameters
    ]
    if not fitting:
        raise ValueError(f"--draft is missing, and no model known by name can be a draft for {target}")
    return min(fitting, key=lambda name: known_model(name).spec.num_parameters)


def _check_unused(policy: str | None) -> None:
    if policy not in policy_names() or policy_class(policy).layout is not Layout.TARGET_ONLY:
        raise ValueError(_NO_DRAFT)


def best_draft(drafts: Drafts) -> Planned:
    """The plan that is best for its goal. If there is none, the first draft's ValueError."""
    from swiftspec.planner.search.goals import preference

    planned = [found for found in drafts.values() if isinstance(found, Planned)]
    if not planned:
        raise next(error for error in drafts.values() if isinstance(error, ValueError))
    return max(planned, key=lambda found: preference(found.plan))


def show_drafts(drafts: Drafts) -> None:
    """Print a line for each draft, best first."""
    from swiftspec.planner.search.goals import preference

    made = {name: found.plan for name, found in drafts.items() if isinstance(found, Planned)}
    ordered = sorted(made, key=lambda name: preference(made[name]), reverse=True)
    table = Table(
        title="Drafts",
        columns=(*texts("draft", "policy", "split", "acceptance"), *numbers("devices", "tokens/s")),
        rows=[_row(name, made[name]) for name in ordered],
    )
    faults = [f"No plan with {name}: {found}" for name, found in drafts.items() if isinstance(found, ValueError)]
    best = f"The best is {best_draft(drafts).plan.draft.model}:"
    show([Section(key="drafts", title="Drafts", parts=(table, *faults, best))])


def _row(name: str, made: Plan) -> Row:
    chosen, acceptance = made.chosen, made.acceptance
    cells = (
        name,
        chosen.policy,
        chosen.split,
        acceptance.provenance if acceptance else "",
        str(len(chosen.devices)),
        speed(chosen.prediction.metrics.figures.tokens_per_s),
    )
    return Row(cells, remark=acceptance.basis if acceptance else "")
