"""Choice of a draft: one plan if one is named, otherwise a plan for each and the best; or kinds beside each other."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.api import compare_kinds as lay_out
from swiftspec.artifacts.kinds import KindComparison
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.cli import console
from swiftspec.cli.command import refuse
from swiftspec.cli.outputs import check_files, draw, write_json
from swiftspec.cli.plan_flags import compared_clients, deployment_of, parsed_jobs, price_of
from swiftspec.cli.sections import show
from swiftspec.cli.verbs.plans import PlanFlags
from swiftspec.planner.drafts.named import fitting_drafts
from swiftspec.planner.planned_model import PlannedModel
from swiftspec.policies import Layout, policy_class, policy_names
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import speed
from swiftspec.reports.kinds import kind_sections
from swiftspec.reports.model import Section, Table, numbers, row, texts

if TYPE_CHECKING:
    from swiftspec.acceptance.given import GivenAcceptance

_PUBLISHED = "published"
_OF_A_SEARCH = ("out", "profile", "inflate", "limit", "fleet", "objective", "policy", "split")

# A plan for each draft, or the reason that there is none.
Drafts = Mapping[str, Planned | ValueError]


def named_drafts(
    target: str, drafts: Sequence[str], acceptance: Sequence[str], policy: str | None
) -> "dict[str, GivenAcceptance | None]":
    """Drafts that flags name, with the acceptance that they give; the smallest, for policies that do not use it.

    ValueError: naming the flag: a draft is missing or named twice, or acceptance is given for some drafts only.
    """
    if not drafts:
        drafts = [_unused_draft(target, policy)]
    planned = PlannedModel.of(Role.TARGET, target)
    taken = [planned.draft(draft).name for draft in drafts]
    if twice := next((name for name in taken if taken.count(name) > 1), None):
        raise ValueError(f"--draft is {twice} twice; expected different models")
    from swiftspec.acceptance.given import GivenAcceptance

    return {
        name: None if text is None else GivenAcceptance.parse(text, field="--acceptance")
        for name, text in _with_acceptance(drafts, acceptance)
    }


def _with_acceptance(
    drafts: Sequence[str], acceptance: Sequence[str], *, otherwise: str = ""
) -> Iterable[tuple[str, str | None]]:
    """Drafts with their acceptance, None without any. ValueError if some have it; otherwise: what it may be instead."""
    if acceptance and len(acceptance) != len(drafts):
        raise ValueError(
            f"--acceptance is given {len(acceptance)} times and --draft {len(drafts)} times; "
            f"expected one for each draft, in the same order{otherwise}"
        )
    return zip_longest(drafts, acceptance)


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
    if not (fitting := fitting_drafts(PlannedModel.of(Role.TARGET, target))):
        raise ValueError(f"--draft is missing, and no model known by name can be a draft for {target}")
    return fitting[0]


def _check_unused(policy: str | None) -> None:
    if policy not in policy_names() or policy_class(policy).layout is not Layout.TARGET_ONLY:
        raise ValueError(
            "--draft is missing; only --policy autoregressive, --policy prompt_lookup and --policy suffix_decoding can "
            "be planned without one"
        )


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
    rows = [
        row(
            name,
            plan.chosen.policy,
            plan.chosen.split,
            plan.acceptance.provenance if plan.acceptance else "",
            str(len(plan.chosen.devices)),
            speed(plan.chosen.prediction.metrics.figures.tokens_per_s),
            remark=plan.acceptance.basis if plan.acceptance else "",
        )
        for name, plan in sorted(made.items(), key=lambda found: preference(found[1]), reverse=True)
    ]
    columns = (*texts("draft", "policy", "split", "acceptance"), *numbers("devices", "tokens/s"))
    faults = [f"No plan with {name}: {found}" for name, found in drafts.items() if isinstance(found, ValueError)]
    best = f"The best is {best_draft(drafts).plan.draft.model}:"
    table = Table(title="Drafts", columns=columns, rows=rows)
    show([Section(key="drafts", title="Drafts", parts=(table, *faults, best))])


def compare_kinds(asked: PlanFlags, target: str) -> KindComparison:
    deployment = deployment_of(asked)
    if deployment is None:
        raise ValueError(f"--load is {asked.load}; drafts are compared on other hardware only: expected --device")
    refuse(asked, _OF_A_SEARCH, f"--load {asked.load} compares drafts and makes no plan")
    check_files(asked)
    drafts = asked.draft or []
    rates = _with_acceptance(drafts, asked.acceptance or (), otherwise=f", or {_PUBLISHED}")
    if twice := next((name for name in drafts if drafts.count(name) > 1), None):
        raise ValueError(f"--draft is {twice} twice; expected different ones")
    compared = lay_out(
        target,
        deployment=deployment,
        drafts={name: None if text == _PUBLISHED else text for name, text in rates},
        clients=compared_clients(asked),
        trace=asked.trace,
        dataset=asked.dataset,
        seed=asked.seed,
        num_jobs=parsed_jobs(asked)[0],
        price_per_hour=price_of(asked),
        stages=console.progress,
    )
    show(kind_sections(compared), headings=True)
    draw(asked.plot, "kinds_by_load", compared)
    write_json(asked.json, compared.model_dump(mode="json"))
    return compared
