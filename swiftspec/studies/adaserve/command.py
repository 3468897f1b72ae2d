"""`swiftspec study adaserve`: AdaServe's serving experiment, published beside simulated; docs/studies.md."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swiftspec.cli import console
from swiftspec.files.reading import shown
from swiftspec.studies.adaserve.batch_loss import batch_gain, vllm_in_2025
from swiftspec.studies.adaserve.experiment import MODELS, SYSTEMS, Outcome, serve
from swiftspec.studies.adaserve.requests import FIGURES
from swiftspec.studies.backtest.published import read_facts

_MODEL, _FIGURE = MODELS[0], 8  # whose rates are checked
_CHECKED = {4.2: len(SYSTEMS), 4.8: 1}  # requests/s, and how many of the first systems are to be those published
_WITHIN = 15.0  # points
_FIRST = SYSTEMS[0]
# Draft tokens of chains whose gain is shown, and the probability that one is accepted, beside the experiment's own.
_CHAINS = ((5, 0.65), (8, 0.7))
_AT_ONCE = (1, 8, 16, 32, 64)


def adaserve(figure: int, model: str, at: str | None) -> bool:
    """Simulate and print the points `at` of a figure, all if None; whether what is checked holds.

    Raises
    ------
    ValueError
        If the figure, the model or a point is not one of those published.
    """
    facts = read_facts("adaserve")
    if figure not in FIGURES:
        raise ValueError(f"--figure is {figure}; expected one of {', '.join(map(str, FIGURES))}")
    if model not in MODELS:
        raise ValueError(f"--model is {shown(model)}; expected one of {', '.join(MODELS)}")
    published = facts["figures"][str(figure)]
    points = _points(at, published[model]["at"])
    outcomes = {name: [serve(name, model, FIGURES[figure](point)) for point in points] for name in SYSTEMS}
    found = _beside(published[model], points, outcomes)
    console.say(f"Figure {figure}, {model}, by {published['axis']}")
    for quantity, by_system in found.items():
        rows = [(name, *(f"{value:.1f}" for pair in pairs for value in pair)) for name, pairs in by_system.items()]
        header = ("system", *(f"{point:g}" for point in points for _ in range(2)))
        console.table(f"{_QUANTITIES[quantity][0]}: published, simulated", header, rows)
    if (figure, model) != (_FIGURE, _MODEL):
        return True
    held = [
        _held(point, {name: pairs[index] for name, pairs in found["attainment"].items()})
        for index, point in enumerate(points)
        if point in _CHECKED
    ]
    _show_gains(facts["models"][model]["accepted_share"])
    return all(held)


# What is published of a figure: the title of its table, and the same of an outcome.
_QUANTITIES: Mapping[str, tuple[str, Callable[[Outcome], float]]] = {
    "attainment": ("Requests within their limits, in %", lambda outcome: 100 * outcome.attainment),
    "goodput_tokens_per_s": ("Their tokens/s", lambda outcome: outcome.goodput_tokens_per_s),
    "tokens_per_round": ("Tokens of a round", lambda outcome: outcome.tokens_per_round),
}


def _points(listed: str | None, published: Sequence[float]) -> list[float]:
    """Points of a list, all if None. ValueError if one is not among those published."""
    if listed is None:
        return list(published)
    try:
        points = [float(part) for part in listed.split(",")]
    except ValueError:
        points = []
    if not points or not set(points) <= set(published):
        raise ValueError(f"--at is {shown(listed)}; expected some of {', '.join(f'{each:g}' for each in published)}")
    return points


def _beside(
    figure: Mapping[str, Any], points: Sequence[float], outcomes: Mapping[str, Sequence[Outcome]]
) -> Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]:
    """By quantity and system, what is published of every point and what was simulated."""
    columns = [figure["at"].index(point) for point in points]
    return {
        quantity: {
            name: [(values[column], of(outcome)) for column, outcome in zip(columns, outcomes[name], strict=True)]
            for name, values in figure[quantity].items()
        }
        for quantity, (_, of) in _QUANTITIES.items()
        if quantity in figure
    }


def _show_gains(accepted_share: float) -> None:
    """Print the gain of drafting in lock step, with the fitted constants, see `batch_loss`."""
    engine = vllm_in_2025()
    rows = [
        (str(length), f"{share:g}", *(f"{gain:.2f}" for gain in gains))
        for length, share in ((5, accepted_share), (8, accepted_share), *_CHAINS)
        for gains in [[batch_gain(engine, n, num_draft_tokens=length, accepted_share=share) for n in _AT_ONCE]]
    ]
    title = "vLLM 0.8.4 with the fitted constants: speed of chains over plain decoding, by requests at once"
    console.table(title, ("draft tokens", "accepted", *map(str, _AT_ONCE)), rows, num_text_columns=0)


def _held(rate: float, shares: Mapping[str, tuple[float, float]]) -> bool:
    """Whether the order at a rate is the published one as far as it is checked, and the first system near to it.

    shares: published and simulated, in %, of every system.
    """
    wanted, order = (sorted(shares, key=lambda name: -shares[name][which]) for which in (0, 1))
    as_published = "as published" if order == wanted else f"published: {', '.join(wanted)}"
    published, simulated = shares[_FIRST]
    away = simulated - published
    console.say(f"{rate:g} requests/s: {', '.join(order)} ({as_published}); {_FIRST} is off by {away:+.1f} points")
    return order[: _CHECKED[rate]] == wanted[: _CHECKED[rate]] and abs(away) <= _WITHIN
