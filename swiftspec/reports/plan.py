"""Sections of a plan's report, in the order in which the terminal prints them and the page shows them."""

from collections.abc import Iterator

from swiftspec.artifacts.plan import WEAK, Candidate, Objective, Plan
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.under_load import UnderLoad
from swiftspec.policies.effects import Role
from swiftspec.reports.basis import acceptance, machine, provenance
from swiftspec.reports.explored import devices, splits
from swiftspec.reports.fleet import fleet
from swiftspec.reports.formatting import (
    count,
    drafting,
    engine,
    estimated,
    milliseconds,
    money,
    objective,
    percent,
    provenance_shares,
    shape_text,
    signed_percent,
    speed,
)
from swiftspec.reports.model import (
    DASH,
    SIMULATED,
    Doubt,
    Facts,
    Interval,
    Part,
    Section,
    Source,
    Table,
    numbers,
    row,
    texts,
)
from swiftspec.reports.rounds import rounds
from swiftspec.reports.under_load import stated_limits, under_load
from swiftspec.timing.timeline import Timeline

_MOST_TIES = 3


def plan_sections(
    plan: Plan, *, profile: Profile | None = None, timeline: Timeline | None = None
) -> tuple[Section, ...]:
    """Sections that the plan has facts for; the first is the answer.

    profile, timeline: profile that the plan was made from, and a simulated request of the chosen candidate; without
    them, the sections about a round's time are left out.
    """
    made = (
        _answer(plan),
        *fleet(plan),
        under_load(plan),
        _policies(plan),
        splits(plan),
        devices(plan),
        *(rounds(plan, profile, timeline) if profile and timeline else []),
        provenance(plan),
        acceptance(plan),
        machine(plan),
        _sensitivity(plan),
        _search(plan),
    )
    return tuple(section for section in made if section is not None and section.parts)


def _answer(plan: Plan) -> Section:
    """The choice as a title, what to doubt, whose engine, and the figures that explain it."""
    title, caption, figures = _alone(plan) if plan.under_load is None else _under_load(plan, plan.under_load)
    parts = (*_doubts(plan), Facts(figures, _rests_on(plan.chosen)))
    return Section(key="answer", title=title, caption=caption, parts=parts, sources=SIMULATED)


def _alone(plan: Plan) -> tuple[str, str, dict[str, str]]:
    """Title, caption and figures: what one request at a time gets."""
    chosen, metrics = plan.chosen, plan.chosen.prediction.metrics
    speeds = _interval(chosen, limit=chosen.prediction.tokens_per_s_high)
    title = f"{chosen.policy} {chosen.split} gives one user {speed(speeds.value)} tokens/s (95 % interval {speeds})"
    figures = {
        "while decoding": f"{speed(metrics.decoding_tokens_per_s)} tokens/s",
        "per output token": f"{milliseconds(metrics.tpot_s)} ms",
        "to first token": f"{milliseconds(metrics.ttft_s)} ms",
        "round, median": f"{milliseconds(metrics.figures.round_s.median)} ms",
        "tokens per round": f"{metrics.figures.tokens_per_round:.2f}",
        "of the speed of light": percent(metrics.light_fraction),
    }
    return title, f"with {shape}" if (shape := shape_text(chosen.describe())) else "", figures


def _under_load(plan: Plan, load: UnderLoad) -> tuple[str, str, dict[str, str]]:
    """The same for many requests: what they get, and under which limits."""
    chosen, predicted = plan.chosen, load.predictions[plan.chosen.policy]
    metrics, within = predicted.metrics, " within their limits" if load.goal.is_limited else ""
    title = f"{chosen.policy} {chosen.split} serves {metrics.request_goodput:.2f} requests/s{within}"
    where = ""
    if (fleet := plan.fleet) is not None:
        each = "s" if fleet.num_replicas == 1 else ""
        title = (
            f"{count(fleet.num_replicas, 'replica')} of {fleet.chosen.name} serve{each} {fleet.rate:g} {fleet.unit}: "
            f"{speed(fleet.point.user_tokens_per_s)} tokens/s for a user"
        )
        if not fleet.is_enough:
            title = f"No fleet keeps the limits of {fleet.rate:g} {fleet.unit}: {fleet.chosen.name} comes nearest"
        where = f"on {fleet.num_devices} of {fleet.most_devices} devices"
    figures = {
        "in limits": percent(fleet.point.attained if fleet else predicted.attained),
        "to first token, p95": f"{milliseconds(fleet.point.ttft_p95_s if fleet else metrics.ttft_s.p95)} ms",
        "per output token, p95": f"{milliseconds(fleet.point.tpot_p95_s if fleet else metrics.tpot_s.p95)} ms",
        "alone (95 % interval)": f"{_interval(chosen, limit=chosen.prediction.tokens_per_s_high)} tokens/s",
    }
    if plan.gain is not None:
        figures["drafting gains (90 %)"] = f"{plan.gain.low:.2f} to {plan.gain.high:.2f} times"
    shape = shape_text(chosen.describe())
    what = ", ".join(filter(None, (f"with {shape}" if shape else "", where)))
    return title, ". ".join(filter(None, (what, stated_limits(load)))), figures


def _doubts(plan: Plan) -> Iterator[Part]:
    if plan.is_weak:
        yield Doubt(
            f"An estimate: {percent(plan.weak_share)} of the predicted time rests on no measurement "
            "(roofline or assumed).",
            see="provenance",
        )
    yield f"Engine: {engine(plan)}."
    if not plan.sampling.is_greedy:
        yield f"Output is sampled: {plan.sampling}. Times are of greedy steps; drawing adds to short ones."
    if plan.binds:
        yield Doubt(f"Binds: {plan.binds}.")
    known = plan.acceptance
    if known is not None and (known.warning or known.provenance in WEAK):
        yield Doubt(f"Warning: acceptance is {known.warning or known.provenance}.", see="acceptance")


def _policies(plan: Plan) -> Section:
    """The best of every policy, the chosen one first, and why it was chosen."""
    candidates = plan.candidates.values()
    limit = max(candidate.prediction.tokens_per_s_high for candidate in candidates)
    rows = [
        row(
            candidate.policy,
            candidate.split,
            speed(figures.tokens_per_s),
            _interval(candidate, limit=limit),
            f"{milliseconds(figures.round_s.median)} ({milliseconds(figures.round_s.p95)})",
            f"{figures.tokens_per_round:.2f}",
            # With several target groups that verify at once, the speed of one is no bound.
            percent(metrics.light_fraction) if candidate.build().target_groups == 1 else DASH,
            remark=shape_text(candidate.describe()),
            tip=_rests_on(candidate),
            chosen=candidate is plan.chosen,
        )
        for candidate in candidates
        for metrics, figures in [(candidate.prediction.metrics, candidate.prediction.metrics.figures)]
    ]
    columns = ("tokens/s", "95 % interval", "round ms (p95)", "per round", "of light")
    table = Table(
        title="The best of every policy, as predicted",
        columns=(*texts("policy", "split"), *numbers(*columns)),
        rows=rows,
    )
    return Section(
        key="policies",
        title="The best of every policy",
        caption=f"Outputs of up to {plan.max_new_tokens} tokens, on every traced prompt or, for much slower policies, "
        "on a few; intervals are drawn from 0.",
        parts=(*_reasons(plan), table, *_remarks(plan)),
        sources=SIMULATED,
    )


def _interval(candidate: Candidate, *, limit: float) -> Interval:
    found = candidate.prediction
    return Interval(found.tokens_per_s_low, found.metrics.figures.tokens_per_s, found.tokens_per_s_high, limit)


def _rests_on(candidate: Candidate) -> str:
    """`Simulated; the time rests on measured 93 %, interpolated 7 %`."""
    return f"Simulated; the time rests on {provenance_shares(candidate.prediction.provenance)}"


def _reasons(plan: Plan) -> Iterator[str]:
    """The choice against the next best, its devices and objective, and the time of one request."""
    if plan.under_load is not None:
        yield "For one request at a time:"
    yield _chosen(plan)
    devices = count(plan.num_devices + plan.draft_devices, "device")
    yield f"On {len(plan.chosen.devices)} of {devices}. Objective: {objective(plan)}."
    if plan.gain is not None and plan.under_load is None:
        yield drafting(plan.gain)
    if plan.goal.objective is Objective.DEVICES:
        yield _fewest(plan)
    metrics, cost = plan.chosen.prediction.metrics, plan.cost_per_million_tokens
    priced = "" if cost is None else f" A million tokens cost {money(cost)}, in the currency of the price per hour."
    yield (
        f"First token after {milliseconds(metrics.ttft_s)} ms, then one every {milliseconds(metrics.tpot_s)} ms: "
        f"{count(plan.max_new_tokens, 'output token')} in {plan.max_new_tokens / metrics.figures.tokens_per_s:.3g} s."
        + priced
    )
    if Role.DRAFT in plan.chosen.groups:
        patience = "the time of two steps" if plan.draft_devices else f"{milliseconds(plan.chosen.patience_s)} ms"
        yield f"If the draft sends nothing for {patience}, the target goes on without it."


def _chosen(plan: Plan) -> str:
    metrics, figures = plan.chosen.prediction.metrics, plan.chosen.prediction.metrics.figures
    text = (
        f"Chosen: {plan.chosen.describe()}, for {speed(figures.tokens_per_s)} tokens/s predicted, "
        f"{speed(metrics.decoding_tokens_per_s)} while decoding"
    )
    if not plan.alternatives:
        return f"{text}; no other policy was feasible or asked for."
    rival = max(plan.alternatives, key=lambda other: other.prediction.metrics.figures.tokens_per_s)
    other = rival.prediction.metrics.figures
    ratio = figures.tokens_per_s / other.tokens_per_s
    return (
        f"{text}, {ratio:.2f} times {rival.policy}{', the next best' if ratio >= 1 else ''}: "
        f"a round of {milliseconds(figures.round_s.median)} ms brings {figures.tokens_per_round:.2f} tokens, "
        f"against {milliseconds(other.round_s.median)} ms and {other.tokens_per_round:.2f}."
    )


def _fewest(plan: Plan) -> str:
    """The number of devices it takes, in a sentence."""
    used = len(plan.chosen.devices)
    text = f"{count(used, 'device')} {'is' if used == 1 else 'are'} the fewest that keep to these limits"
    if (fewer := plan.fastest_by_devices.get(used - 1)) is None:
        return f"{text}."
    best = f"{estimated(speed(fewer.tokens_per_s), fewer)} tokens/s by {fewer.policy} {fewer.split}"
    return f"{text}; the fastest found on {used - 1}: {best}."


def _remarks(plan: Plan) -> Iterator[str]:
    metrics = plan.chosen.prediction.metrics
    yield (
        f"Speed of light of the choice: {speed(metrics.speed_of_light)} tokens/s, "
        f"{metrics.figures.tokens_per_round:.2f} tokens per verification of {milliseconds(metrics.verify_s)} ms; "
        f"{percent(metrics.light_fraction)} of it is reached."
    )
    if plan.ties:
        more = len(plan.ties) - _MOST_TIES
        others = f"; and {more} more" if more > 0 else ""
        yield f"Tied within the noise, and less simple: {'; '.join(plan.ties[:_MOST_TIES])}{others}."


def _sensitivity(plan: Plan) -> Section | None:
    """The choice under other assumptions; the shape of another one below it."""
    if not plan.sensitivities:
        return None
    planned = plan.chosen.prediction.metrics.figures.tokens_per_s
    rows = [
        row(
            case.change,
            speed(case.best_tokens_per_s),
            speed(case.tokens_per_s) if case.tokens_per_s else "does not fit",
            signed_percent(case.tokens_per_s / planned - 1) if case.tokens_per_s else "",
            case.best.partition(" (")[0] if case.changes_choice else "still the choice",
            remark=shape_text(case.best) if case.changes_choice else "",
            chosen=case.changes_choice,
        )
        for case in plan.sensitivities
    ]
    changing = sum(case.changes_choice for case in plan.sensitivities) or "none"
    table = Table(
        title=f"What would change the choice: {changing} of {count(len(rows), 'case')}",
        columns=(*texts("if"), *numbers("tokens/s", "the choice's", "change"), *texts("best is")),
        rows=rows,
    )
    return Section(key="sensitivity", title="What would change the choice", parts=[table], sources=SIMULATED)


def _search(plan: Plan) -> Section:
    """What was simulated, one row for each reason to reject options, even if policies share it; and the input files."""
    total = sum(rejection.num_options for rejection in plan.rejections)
    devices = count(plan.num_devices + plan.draft_devices, "device")
    simulated = f"Simulated {count(plan.num_simulated, 'candidate')} on {devices}"
    rows = [
        row(
            found.reason,
            str(found.num_options),
            remark=", ".join(f"{policy} {number}" for policy, number in found.by_policy.items() if policy),
        )
        for found in plan.rejections
    ]
    table = Table(title=f"{simulated}, rejected {total}", columns=(*texts("reason"), *numbers("options")), rows=rows)
    based_on = f"Based on {plan.profile.path} and {plan.trace.path}, for" if plan.profile.path else "For"
    return Section(
        key="rejected",
        title="Simulated and rejected options",
        parts=(table if rows else f"{simulated}.", f"{based_on} {plan.models}."),
        sources=(Source.SIMULATION,),
    )
