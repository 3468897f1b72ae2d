"""Exact laws of short texts over tiny vocabularies, and chi-square tests of samples against them."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import product

from scipy.optimize import brentq
from scipy.stats import chi2, ncx2

Tokens = tuple[int, ...]
Law = dict[Tokens, float]

_LEAST_EXPECTED = 5.0  # per cell; rarer ones are merged, as the chi-square approximation demands
POWER = 0.99


def joint_law(shares_after: Callable[[Tokens], Iterable[float]], prompt: Tokens, length: int) -> Law:
    """Probability of every text of a number of tokens after the prompt; `shares_after` a path is of its next token."""
    law: Law = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, token): probability * share
            for text, probability in law.items()
            for token, share in enumerate(map(float, shares_after((*prompt, *text))))
        }
    return law


def p_value(sample: list[Tokens], law: Law) -> float:
    """Of Pearson's chi-square test."""
    counts, num = Counter(sample), len(sample)
    assert all(law.get(text, 0.0) > 0.0 for text in counts), "only what may happen does"
    cells = _cells(law, num)
    statistic = sum((sum(counts[text] for text in cell) - expected) ** 2 / expected for cell, expected in cells)
    return float(chi2.sf(statistic, len(cells) - 1))


def detectable(law: Law, num: int, level: float) -> float:
    """Total variation from the law that a test at this level finds with probability `POWER`, however it is spread.

    The noncentrality of n draws is n sum (d_i^2 / p_i), which is at least n (sum |d_i|)^2 = 4 n TV^2 (Cauchy-Schwarz).
    """
    degrees = len(_cells(law, num)) - 1
    critical = chi2.isf(level, degrees)
    noncentrality = brentq(lambda value: ncx2.sf(critical, degrees, value) - POWER, 1e-3, 1e4)
    return float((noncentrality / (4 * num)) ** 0.5)


def every_text(vocab_size: int, length: int) -> list[Tokens]:
    return list(product(range(vocab_size), repeat=length))


def _cells(law: Law, num: int) -> list[tuple[list[Tokens], float]]:
    """Texts that are counted together, with how many of them are expected."""
    common = [([text], probability * num) for text, probability in law.items() if probability * num >= _LEAST_EXPECTED]
    rare = [text for text, probability in law.items() if probability * num < _LEAST_EXPECTED]
    expected = sum(law[text] * num for text in rare)
    return [*common, (rare, expected)] if expected > 0 else common
