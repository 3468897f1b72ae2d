"""The top of the report: the answer in one sentence, what to doubt, and the figures that explain it."""

from collections.abc import Iterator, Mapping

from swiftspec.artifacts.plan import WEAK, Plan
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import count, engine, known_errors, milliseconds, objective, percent, speed
from swiftspec.reports.html.markup import Markup, element
from swiftspec.reports.html.parts import View, as_sentence, definitions, machine, shape_text, traced
from swiftspec.reports.html.sources import Source, cite

__all__ = ["answer"]


def answer(view: View) -> Markup:
    """Header of the report: sentence, warning, key figures."""
    return element("header", *_pieces(view))


def _pieces(view: View) -> Iterator[Markup]:
    plan, chosen = view.plan, view.plan.chosen
    target, draft = (_model(plan, role) for role in Role)
    yield element("p", f"{target} with {draft}, on {machine(plan)}", class_="eyebrow")
    yield _sentence(view)
    yield from _warning(view)
    yield definitions([(term, traced(value, chosen)) for term, value in _figures(view)], class_="key-figures")
    yield element("p", element("strong", "Engine: "), f"{engine(plan)}.", class_="engine")
    yield element("p", _goal(plan), class_="quiet")
    if errors := known_errors(plan):
        yield element("p", as_sentence(errors), class_="quiet")
    if plan.ties:
        yield element("p", f"Tied within the noise, and less simple: {'; '.join(plan.ties)}.", class_="quiet")


def _model(plan: Plan, role: Role) -> str:
    """Name of a model as the user gave it; if it is quantised, its weight format is named with the choice."""
    reference = plan.target if role is Role.TARGET else plan.draft
    return reference.model if role in plan.quantisation else str(reference)


def _sentence(view: View) -> Markup:
    chosen, prediction = view.plan.chosen, view.plan.chosen.prediction
    interval = f"{speed(prediction.tokens_per_s_low)} to {speed(prediction.tokens_per_s_high)}"
    details = "; ".join(_details(view))
    return element(
        "h1",
        element("b", f"{chosen.policy} {chosen.split}"),
        " gives one user ",
        element("b", traced(f"{speed(prediction.metrics.figures.tokens_per_s)} tokens/s", chosen)),
        f" (95 % interval {interval})",
        element(
            "span",
            f" with {details}. " if details else ". ",
            cite(Source.SIMULATION, Source.LATENCIES, Source.ACCEPTANCE),
            class_="rest" if details else None,
        ),
    )


def _details(view: View) -> Iterator[str]:
    """Shape, all-reduce and weight formats, as far as the plan has them."""
    plan = view.plan
    if shape := shape_text(plan.chosen):
        yield shape
    if plan.collectives:
        used = {collective.role: collective.implementation for collective in plan.collectives}
        yield f"all-reduce {_by_role(used)}"
    if plan.quantisation:
        yield f"weights in {_by_role(plan.quantisation)}"


def _by_role(names: Mapping[Role, str]) -> str:
    """Names by role: `int4 for the target, bf16 for the draft`; `int4` if both are the same."""
    if len(set(names.values())) == 1:
        return next(iter(names.values()))
    return ", ".join(f"{name} for the {role}" for role, name in names.items())


def _goal(plan: Plan) -> str:
    used = f"On {len(plan.chosen.devices)} of {count(plan.num_devices, 'device')}"
    return f"{used}. Objective: {objective(plan)}."


def _warning(view: View) -> Iterator[Markup]:
    plan = view.plan
    if plan.is_weak:
        text = f"{percent(plan.weak_share)} of the predicted time rests on rooflines and assumptions."
        advice = " They are not based on measurements. "
        where = element("a", "What the prediction rests on", href="#provenance")
        yield element("p", element("strong", text), advice, where, class_="warning", role="note")
    if plan.binds:
        yield element("p", element("strong", "More than token ids:"), f" {plan.binds}.", class_="warning", role="note")
    known = plan.acceptance
    if known is not None and (known.warning or known.provenance in WEAK):
        text = f"Acceptance is {known.warning or known.provenance}."
        yield element("p", element("strong", text), f" {as_sentence(known.basis)}", class_="warning", role="note")


def _figures(view: View) -> Iterator[tuple[str, str]]:
    metrics = view.plan.chosen.prediction.metrics
    figures = metrics.figures
    yield "while decoding", f"{speed(metrics.decoding_tokens_per_s)} tokens/s"
    yield "per output token", f"{milliseconds(metrics.tpot_s)} ms"
    yield "to first token", f"{milliseconds(metrics.ttft_s)} ms"
    yield "round, median", f"{milliseconds(figures.round_s.median)} ms"
    yield "tokens per round", f"{figures.tokens_per_round:.2f}"
    yield "of the speed of light", percent(metrics.light_fraction)
