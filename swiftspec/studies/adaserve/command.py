"""`swiftspec study adaserve`: AdaServe's serving experiment, published beside simulated; docs/studies.md."""

from collections.abc import Mapping, Sequence

from swiftspec.cli import console
from swiftspec.files.reading import shown
from swiftspec.studies.adaserve.batch_loss import batch_gain, vllm_in_2025
from swiftspec.studies.adaserve.experiment import SYSTEMS, serve
from swiftspec.studies.backtest.published import read_facts

_CHECKED = {4.2: len(SYSTEMS), 4.8: 1}  # requests/s, and how many of the first systems are to be those published
_WITHIN = 10.0  # points
_FIRST = SYSTEMS[0]
# Draft tokens of chains whose gain is shown, and the probability that one is accepted, beside the experiment's own.
_CHAINS = ((5, 0.65), (8, 0.7))
_AT_ONCE = (1, 8, 16, 32, 64)


def adaserve(listed_rates: str) -> bool:
    """Simulate and print; whether what is checked holds."""
    facts = read_facts("adaserve")
    rates = _rates(listed_rates, facts["requests_per_s"])
    columns = [facts["requests_per_s"].index(rate) for rate in rates]
    found = {name: [serve(name, rate) for rate in rates] for name in SYSTEMS}

    def table(title: str, published: Mapping[str, Sequence[float]], simulated: Mapping[str, Sequence[float]]) -> None:
        rows = []
        for name, values in simulated.items():
            pairs = zip((published[name][column] for column in columns), values, strict=True)
            rows.append((name, *(f"{value:.1f}" for pair in pairs for value in pair)))
        console.table(title, ("system", *(f"{rate:g}/s" for rate in rates for _ in range(2))), rows)

    attained = {name: [100 * outcome.attainment for outcome in outcomes] for name, outcomes in found.items()}
    goodput = {name: [outcome.goodput_tokens_per_s for outcome in outcomes] for name, outcomes in found.items()}
    tokens = {_FIRST: [outcome.tokens_per_round for outcome in found[_FIRST]]}
    table("Requests within their limits, in %: published, simulated", facts["attainment"], attained)
    table("Their tokens/s: published, simulated", facts["goodput_tokens_per_s"], goodput)
    table("Tokens of a round: published, simulated", {_FIRST: facts["adaserve_tokens_per_round"]}, tokens)
    held = True
    for index, rate in enumerate(rates):
        if rate in _CHECKED:
            shares = {name: (facts["attainment"][name][columns[index]], attained[name][index]) for name in SYSTEMS}
            held = _held(rate, shares) and held
    _show_gains(facts["accepted_share"])
    return held


def _rates(listed: str, published: Sequence[float]) -> list[float]:
    """Rates of a list. ValueError if one is not among those published."""
    try:
        rates = [float(part) for part in listed.split(",")]
    except ValueError:
        rates = []
    if not rates or not set(rates) <= set(published):
        raise ValueError(f"--rates is {shown(listed)}; expected some of {', '.join(map(str, published))}")
    return rates


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

    shares: published and simulated, of every system.
    """
    wanted, order = (sorted(shares, key=lambda name: -shares[name][which]) for which in (0, 1))
    published, simulated = shares[_FIRST]
    as_published = "as published" if order == wanted else f"published: {', '.join(wanted)}"
    away = simulated - published
    console.say(f"{rate:g} requests/s: {', '.join(order)} ({as_published}); {_FIRST} is off by {away:+.1f} points")
    return order[: _CHECKED[rate]] == wanted[: _CHECKED[rate]] and abs(away) <= _WITHIN
