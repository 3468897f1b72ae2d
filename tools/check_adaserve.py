"""AdaServe's serving experiment, published beside simulated: `python -m tools.check_adaserve`.

Six systems at five rates, a few minutes of one core. Three constants are fitted, on rates up to 4 requests/s; what is
above them is predicted. Exit code 1 if at 4.2 or 4.8 requests/s AdaServe is not the first of the six, or its attainment
is off by more than ten points.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from swiftspec.backtest.adaserve import SYSTEMS, attainment, published
from swiftspec.cli import console

__all__ = ["main"]

_CHECKED = (4.2, 4.8)
_WITHIN = 10.0  # points


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=600, help="of each simulation (default: 600)")
    parser.add_argument("--rates", default="2.6,3.4,4.0,4.2,4.8", help="requests/s (default: 2.6,3.4,4.0,4.2,4.8)")
    chosen = parser.parse_args(arguments)
    facts = published()
    rates = [float(rate) for rate in chosen.rates.split(",")]
    found = {name: [100 * attainment(name, rate, num_requests=chosen.requests) for rate in rates] for name in SYSTEMS}
    shown = {
        name: [facts["attainment"][name][facts["requests_per_s"].index(rate)] for rate in rates] for name in SYSTEMS
    }
    console.table(
        "Requests within their limits, in %: published, simulated",
        ("system", *(f"{rate:g}/s" for rate in rates for _ in range(2))),
        [
            (name, *(f"{value:.1f}" for pair in zip(shown[name], found[name], strict=True) for value in pair))
            for name in SYSTEMS
        ],
    )
    held = True
    for index, rate in enumerate(rates):
        if rate in _CHECKED:
            at_rate = {name: values[index] for name, values in found.items()}
            order = sorted(at_rate, key=at_rate.__getitem__, reverse=True)
            away = found["AdaServe"][index] - shown["AdaServe"][index]
            held = held and order[0] == "AdaServe" and abs(away) <= _WITHIN
            console.say(f"{rate:g} requests/s: {', '.join(order)}; AdaServe is off by {away:+.1f} points")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
