"""Printing of a plan."""

from swiftspec.artifacts.fleet import Fleet
from swiftspec.artifacts.plan import Objective, Plan, Rejection, cost_per_million
from swiftspec.artifacts.under_load import LoadPrediction, UnderLoad
from swiftspec.cli import console
from swiftspec.cli.columns import (
    PREDICTION_COLUMNS,
    milliseconds,
    percent,
    prediction_row,
    provenance_shares,
    shape_of,
    speed,
)
from swiftspec.devices import DEVICES
from swiftspec.policies.effects import Role
from swiftspec.reports import fleet as said
from swiftspec.reports.formatting import count, engine, estimated, gigabytes, known_errors, money, objective
from swiftspec.reports.under_load import COLUMNS, TITLE, assumed, cached, choice, load_row, single_request, unmet

__all__ = ["show_fleet", "show_plan", "show_under_load"]

_MOST_REASONS = 8
_MOST_TIES = 2
_MOST_NAMED = 3  # policies with a reason


def show_under_load(made: Plan, load: UnderLoad) -> None:
    """The choice in a sentence, what it assumes, and a row for the best candidate of every policy."""
    console.paragraph(choice(made, load))
    console.paragraph(assumed(load))
    for sentence in filter(None, (cached(made, load), unmet(made, load))):
        console.paragraph(sentence)
    console.paragraph(single_request(made, load))
    ranked = load.ranked
    console.table(
        TITLE,
        COLUMNS,
        [load_row(policy, made.candidates[policy].split, prediction) for policy, prediction in ranked.items()],
        num_text_columns=2,
        remarks=[_shape(prediction) for prediction in ranked.values()],
    )
    console.paragraph(f"  {count(load.num_candidates, 'candidate')} simulated under this load")


def _shape(prediction: LoadPrediction) -> str:
    return prediction.candidate.partition(" (")[2].removesuffix(")")


def show_fleet(made: Plan, fleet: Fleet) -> None:
    """The fleet in sentences, its kinds of replicas, the front, and the best draft length by batch."""
    console.paragraph(said.choice(made, fleet))
    console.paragraph(said.attainment(fleet))
    console.paragraph(said.others(fleet))
    console.table(said.KIND_TITLE, said.KIND_COLUMNS, [said.kind_row(kind) for kind in fleet.kinds], num_text_columns=2)
    console.paragraph(
        "  Capacity and loads in requests/s per device; ~ marks what longer simulations did not check; + the highest "
        "load that both could serve"
    )
    console.table(
        said.FRONT_TITLE,
        said.FRONT_COLUMNS,
        [said.front_row(fleet, kind, point) for kind, point in fleet.front],
        num_text_columns=1,
    )
    if fleet.draft_lengths:
        console.table(said.LENGTH_TITLE, said.LENGTH_COLUMNS, [said.length_row(best) for best in fleet.draft_lengths])
    console.paragraph(f"  {count(fleet.num_simulations, 'simulation')} of replicas under load")


def show_plan(made: Plan) -> None:
    """The choice in a sentence, its rivals, and what the prediction rests on."""
    if made.is_weak:
        console.paragraph(
            f"An estimate: {percent(made.weak_share)} of the predicted time rests on no measurement "
            "(roofline or assumed)."
        )
    console.paragraph(f"Engine: {engine(made)}")
    if made.fleet is not None:
        show_fleet(made, made.fleet)
    if made.under_load is not None:
        show_under_load(made, made.under_load)
        console.paragraph()
        console.paragraph("For one request at a time:")
    console.paragraph(_sentence(made))
    used = f"On {len(made.chosen.devices)} of {count(made.num_devices, 'device')}"
    console.paragraph(f"{used}. Objective: {objective(made)}")
    if made.goal.objective is Objective.DEVICES:
        console.paragraph(_fewest(made))
    console.paragraph(_request(made))
    _show_candidates(made)
    _show_devices(made)
    metrics = made.chosen.prediction.metrics
    console.paragraph()
    console.paragraph(
        f"Speed of light of the choice: {speed(metrics.speed_of_light)} tokens/s, "
        f"{metrics.figures.tokens_per_round:.2f} tokens per verification of {milliseconds(metrics.verify_s)} ms; "
        f"{percent(metrics.light_fraction)} of it is reached"
    )
    console.paragraph(f"Predicted time rests on: {provenance_shares(made.chosen.prediction.provenance)}")
    if errors := known_errors(made):
        console.paragraph(f"Predictions: {errors}")
    if Role.DRAFT in made.chosen.groups:
        patience_ms = milliseconds(made.chosen.patience_s)
        console.paragraph(f"If the draft sends nothing for {patience_ms} ms, the target goes on without it")
    _show_machine(made)
    _show_sensitivities(made)
    _show_rejections(made)
    based_on = f"Based on {made.profile.path} and {made.trace.path}, for" if made.profile.path else "For"
    console.paragraph(f"{based_on} {made.target} with {made.draft}")


def _fewest(made: Plan) -> str:
    """The number of devices it takes, in a sentence."""
    used = len(made.chosen.devices)
    text = f"{count(used, 'device')} {'is' if used == 1 else 'are'} the fewest that keep to these limits"
    fewer = made.fastest_by_devices.get(used - 1)
    if fewer is None:
        return f"{text}."
    best = f"{estimated(speed(fewer.tokens_per_s), fewer)} tokens/s by {fewer.policy} {fewer.split}"
    return f"{text}; the fastest found on {used - 1}: {best}."


def _request(made: Plan) -> str:
    """Time of one request, and the cost of a million tokens."""
    metrics = made.chosen.prediction.metrics
    whole_s = made.max_new_tokens / metrics.figures.tokens_per_s
    text = (
        f"First token after {milliseconds(metrics.ttft_s)} ms, then one every {milliseconds(metrics.tpot_s)} ms: "
        f"{count(made.max_new_tokens, 'output token')} in {whole_s:.3g} s."
    )
    if (cost := made.cost_per_million_tokens) is None:
        return text
    return f"{text} A million tokens cost {money(cost)}, in the currency of the price per hour."


def _show_candidates(made: Plan) -> None:
    """A row for the best candidate of every policy, with its shape below."""
    candidates = list(made.candidates.values())
    console.table(
        "The best of every policy, as predicted",
        PREDICTION_COLUMNS,
        [prediction_row(candidate) for candidate in candidates],
        num_text_columns=2,
        remarks=[shape_of(candidate) for candidate in candidates],
    )
    if made.ties:
        more = len(made.ties) - _MOST_TIES
        others = f"; and {more} more" if more > 0 else ""
        console.paragraph()
        console.paragraph(f"Tied within the noise, and less simple: {'; '.join(made.ties[:_MOST_TIES])}{others}")


def _show_devices(made: Plan) -> None:
    """Speed, and cost if there is a price, against the number of devices."""
    fastest = made.fastest_by_devices
    if len(fastest) < 2:
        return
    price = made.goal.price_per_hour
    costs = [] if price is None else ["per million"]
    rows = [
        (
            cell.policy,
            cell.split,
            str(number),
            estimated(speed(cell.tokens_per_s), cell),
            estimated(speed(cell.tokens_per_s / number), cell),
            estimated(milliseconds(cell.tpot_s), cell),
            *([] if price is None else [money(cost_per_million(price, number, cell.tokens_per_s))]),
        )
        for number, cell in fastest.items()
    ]
    columns = ("policy", "split", "devices", "tokens/s", "per device", "ms per token", *costs)
    console.table("Fastest found on each number of devices", columns, rows, num_text_columns=2)
    if any(cell.estimated for cell in fastest.values()):
        console.paragraph("  ~ estimated from short simulations")


def _show_machine(made: Plan) -> None:
    """Print the assumptions about hardware that is not local."""
    if made.acceptance is not None:
        if made.acceptance.warning:
            console.paragraph(f"Warning: acceptance is {made.acceptance.warning}")
        console.paragraph(f"Acceptance ({made.acceptance.provenance}): {made.acceptance.basis}")
    for collective in made.collectives:
        known = ", ".join(f"{name} {milliseconds(seconds)} ms" for name, seconds in collective.seconds.items())
        of_which = f"{collective.implementation}, of {known}" if len(collective.seconds) > 1 else known
        console.paragraph(f"All-reduce of the {collective.role} on {count(collective.degree, 'device')}: {of_which}")
    device = DEVICES.get(made.device)
    if device is not None and made.num_devices > device.devices_per_node:
        console.paragraph(
            f"Nodes of {device.devices_per_node} devices: a forward is divided within one node; messages between nodes "
            "carry token ids, and are assumed to take as long as within one"
        )
    if made.binds:
        console.paragraph(f"Binds: {made.binds}")
    for group in made.memory:
        whose = " and ".join(group.weights_bytes)
        of_each = f"each of {len(group.devices)} devices" if len(group.devices) > 1 else "the device"
        console.paragraph(
            f"Memory of {of_each} of the {whose}: {gigabytes(group.used_bytes)} GB of "
            f"{gigabytes(group.usable_bytes)} GB, {gigabytes(sum(group.weights_bytes.values()))} GB of them weights"
        )


def _show_sensitivities(made: Plan) -> None:
    """A row for each changed assumption; the shape of another choice below it."""
    if not made.sensitivities:
        return
    rows, shapes = [], []
    for row in made.sensitivities:
        name, _, shape = row.best.partition(" (")
        own = speed(row.tokens_per_s) if row.tokens_per_s else "does not fit"
        best = name if row.changes_choice else "still the choice"
        rows.append((row.change, speed(row.best_tokens_per_s), own, best))
        shapes.append(shape.removesuffix(")") if row.changes_choice else "")
    columns = ("if", "tokens/s", "the choice's", "best is")
    console.table("What would change the choice", columns, rows, last_is_text=True, remarks=shapes)
    console.say()


def _show_rejections(made: Plan) -> None:
    """A line for each reason that cost most options."""
    rejections = made.rejections
    simulated = f"Simulated {count(made.num_simulated, 'candidate')} on {count(made.num_devices, 'device')}"
    total = sum(rejection.num_options for rejection in rejections)
    console.paragraph(f"{simulated}, rejected {total}:" if rejections else simulated)
    for rejection in rejections[:_MOST_REASONS]:
        console.paragraph(f"{rejection.num_options} {_whose(rejection)}: {rejection.reason}", indent="  ")
    if others := rejections[_MOST_REASONS:]:
        console.paragraph(
            f"{sum(other.num_options for other in others)} for {count(len(others), 'other reason')}", indent="  "
        )


def _whose(rejection: Rejection) -> str:
    names = [name for name in rejection.by_policy if name]
    if not names:
        return "candidates"
    if len(names) > _MOST_NAMED:
        return f"of {len(names)} policies"
    return f"of {' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))}"


def _sentence(made: Plan) -> str:
    chosen = made.chosen
    figures = chosen.prediction.metrics.figures
    metrics = chosen.prediction.metrics
    text = (
        f"Chosen: {chosen.describe()}, for {speed(figures.tokens_per_s)} tokens/s predicted, "
        f"{speed(metrics.decoding_tokens_per_s)} while decoding"
    )
    if not made.alternatives:
        return f"{text}; no other policy was feasible or asked for."
    rival = max(made.alternatives, key=lambda other: other.prediction.metrics.figures.tokens_per_s)
    other = rival.prediction.metrics.figures
    ratio = figures.tokens_per_s / other.tokens_per_s
    return (
        f"{text}, {ratio:.2f} times {rival.policy}{', the next best' if ratio >= 1 else ''}: "
        f"a round of {milliseconds(figures.round_s.median)} ms brings {figures.tokens_per_round:.2f} tokens, "
        f"against {milliseconds(other.round_s.median)} ms and {other.tokens_per_round:.2f}."
    )
