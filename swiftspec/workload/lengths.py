"""Lengths of prompts and outputs, drawn from a distribution."""

import math

import numpy as np
import numpy.typing as npt

from swiftspec.artifacts.distributions import MOST_TOKENS, Distribution, Lengths

__all__ = ["draw_lengths"]

_Tokens = npt.NDArray[np.int64]


def draw_lengths(lengths: Lengths, num_requests: int, rng: np.random.Generator, *, field: str) -> _Tokens:
    """Numbers of tokens, at least 1 each.

    Parameters
    ----------
    field : str
        What the lengths are of, for errors: `prompt_tokens`.

    Raises
    ------
    ValueError
        If the lengths are those of a file.
    """
    match lengths.distribution:
        case Distribution.FIXED:
            assert lengths.tokens is not None
            return np.full(num_requests, lengths.tokens, np.int64)
        case Distribution.UNIFORM:
            assert lengths.least is not None
            assert lengths.most is not None
            return rng.integers(lengths.least, lengths.most, num_requests, endpoint=True)
        case Distribution.LOGNORMAL:
            assert lengths.mean is not None
            assert lengths.cv is not None
            return _lognormal(lengths.mean, lengths.cv, num_requests, rng)
        case other:
            raise ValueError(f"{field} is {other}; expected {Lengths.syntax}")


def _lognormal(mean: float, cv: float, num_requests: int, rng: np.random.Generator) -> _Tokens:
    variance = math.log1p(cv**2)  # of the logarithm
    drawn = rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), num_requests)
    rounded: _Tokens = np.clip(np.rint(drawn), 1, MOST_TOKENS).astype(np.int64)
    return rounded
