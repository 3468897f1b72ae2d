"""How a plan is printed."""

from swiftspec import console
from swiftspec.commands.wording import (
    PREDICTION_COLUMNS,
    milliseconds,
    percent,
    prediction_row,
    provenance_shares,
    speed,
)
from swiftspec.plan import Plan, Rejection
from swiftspec.policies.effects import Role
from swiftspec.registry import DEVICES
from swiftspec.wording import count, engine, gigabytes, known_errors, objective

__all__ = ["show_plan"]

_MOST_REASONS = 8
_MOST_NAMED = 3  # policies with a reason


def show_plan(made: Plan) -> None:
    """The choice in a sentence, its rivals, and what the prediction rests on."""
    if made.is_weak:
        console.say(
            f"An estimate: {percent(made.weak_share)} of the predicted time rests on no measurement "
            "(roofline or assumed)."
        )
    console.say(f"Engine: {engine(made)}")
    console.say(_sentence(made))
    console.say(
        f"On {len(made.chosen.devices)} of {count(made.num_devices, 'device')}. Objective: {objective(made.goal)}"
    )
    console.table(
        "The best of every policy, as predicted",
        PREDICTION_COLUMNS,
        [prediction_row(candidate) for candidate in made.candidates.values()],
        num_text_columns=2,
        last_is_text=True,
    )
    if made.ties:
        console.say(f"\nTied within the noise, and less simple: {'; '.join(made.ties)}")
    metrics = made.chosen.prediction.metrics
    console.say(
        f"\nSpeed of light of the choice: {speed(metrics.speed_of_light)} tokens/s, "
        f"{metrics.figures.tokens_per_round:.2f} tokens per verification of {milliseconds(metrics.verify_s)} ms"
    )
    console.say(f"Predicted time rests on: {provenance_shares(made.chosen.prediction.provenance)}")
    if errors := known_errors(made):
        console.say(f"Predictions: {errors}")
    if Role.DRAFT in made.chosen.groups:
        console.say(f"A draft that is silent for {milliseconds(made.chosen.patience_s)} ms is gone on without")
    _show_machine(made)
    _show_sensitivities(made)
    _show_rejections(made)
    console.say(f"Based on {made.profile.path} and {made.trace.path}, for {made.target} with {made.draft}")


def _show_machine(made: Plan) -> None:
    """What a plan for a machine that is not at hand was told about it."""
    if made.acceptance is not None:
        if made.acceptance.warning:
            console.say(f"Warning: acceptance is {made.acceptance.warning}")
        console.say(f"Acceptance ({made.acceptance.provenance}): {made.acceptance.basis}")
    for collective in made.collectives:
        known = ", ".join(f"{name} {milliseconds(seconds)} ms" for name, seconds in collective.seconds.items())
        of_which = f"{collective.implementation}, of {known}" if len(collective.seconds) > 1 else known
        console.say(f"All-reduce of the {collective.role} on {count(collective.degree, 'device')}: {of_which}")
    device = DEVICES.get(made.device)
    if device is not None and made.num_devices > device.devices_per_node:
        console.say(
            f"Nodes of {device.devices_per_node} devices: a forward is divided within one; what travels between two, "
            "token ids, is assumed to take as long as within one"
        )
    for group in made.memory:
        whose = " and ".join(group.weights_bytes)
        of_each = f"each of {len(group.devices)} devices" if len(group.devices) > 1 else "the device"
        console.say(
            f"Memory of {of_each} of the {whose}: {gigabytes(group.used_bytes)} GB of "
            f"{gigabytes(group.usable_bytes)} GB, {gigabytes(sum(group.weights_bytes.values()))} GB of them weights"
        )


def _show_sensitivities(made: Plan) -> None:
    if made.sensitivities:
        console.table(
            "What would change the choice",
            ("if", "tokens/s", "the choice's", "best is"),
            [
                (
                    row.change,
                    speed(row.best_tokens_per_s),
                    speed(row.tokens_per_s) if row.tokens_per_s else "does not fit",
                    row.best if row.changes_choice else "still the choice",
                )
                for row in made.sensitivities
            ],
            last_is_text=True,
        )
        console.say()


def _show_rejections(made: Plan) -> None:
    """A line for each reason that cost most options."""
    rejections = made.rejections
    simulated = f"Simulated {count(made.num_simulated, 'candidate')} on {count(made.num_devices, 'device')}"
    total = sum(rejection.num_options for rejection in rejections)
    console.say(f"{simulated}, rejected {total}:" if rejections else simulated)
    for rejection in rejections[:_MOST_REASONS]:
        console.say(f"  {rejection.num_options} {_whose(rejection)}: {rejection.reason}")
    if others := rejections[_MOST_REASONS:]:
        console.say(f"  {sum(other.num_options for other in others)} for {count(len(others), 'other reason')}")


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
