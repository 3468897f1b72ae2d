"""Goal of a plan: the objective to optimise and the limits to keep."""

import math
import re
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from swiftspec.files.document import Facts

__all__ = ["Goal", "Objective", "cost_per_million", "split_devices"]

_SPLIT = re.compile(r"[1-9]\d*(x[1-9]\d*)?(\+[1-9]\d*(x[1-9]\d*)?)?")


class Objective(StrEnum):
    """Objective of a plan.

    `tokens-per-s`: speed of one user, from request to last token. `tpot`, `tpot-p95`: time per output token, mean and
    95th percentile over requests. `tokens-per-gpu`: speed over the devices in use. `cost`: tokens for the money.
    `devices`: the fewest devices that meet the limits, and the fastest plan on these.

    Examples
    --------
    >>> swiftspec.Objective("tpot")
    <Objective.TPOT: 'tpot'>
    """

    TOKENS_PER_S = "tokens-per-s"  # of one user, from request to last token
    TPOT = "tpot"  # the mean over requests
    TPOT_P95 = "tpot-p95"  # over requests
    TOKENS_PER_GPU = "tokens-per-gpu"  # tokens/s over devices in use
    COST = "cost"  # tokens per unit of money
    DEVICES = "devices"  # the fewest devices that meet the limits, and the fastest plan on these


class Goal(Facts):
    """Objective of a plan, and the limits that it must meet.

    Attributes
    ----------
    objective : Objective
    min_tokens_per_s : float, optional
        Lowest speed of one user, from request to last token.
    max_tpot_s, max_ttft_s : float, optional
        Highest mean seconds per output token, and until the first one.
    max_devices : int, optional
        Most devices in use.
    splits : tuple of str
        Only these splits, named as `4+4`; any if empty.
    price_per_hour : float, optional
        Of one device, in any currency; the objective `cost` needs it.

    Raises
    ------
    ValueError
        If a value is out of range, or the objective lacks a value it needs.

    Examples
    --------
    >>> swiftspec.Goal(objective="tpot", max_ttft_s=0.5).is_limited
    True
    """

    objective: Objective = Objective.TOKENS_PER_S
    min_tokens_per_s: float | None = Field(default=None, gt=0)
    max_tpot_s: float | None = Field(default=None, gt=0)
    max_ttft_s: float | None = Field(default=None, gt=0)
    max_devices: int | None = Field(default=None, ge=1)
    splits: tuple[str, ...] = ()
    price_per_hour: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.objective is Objective.COST and self.price_per_hour is None:
            raise ValueError("price_per_hour is missing; the objective cost needs what a device costs an hour")
        if self.objective is Objective.DEVICES and not self.is_limited:
            raise ValueError("min_tokens_per_s is missing; the objective devices needs a speed, TPOT or TTFT to reach")
        return self

    @property
    def is_limited(self) -> bool:
        """Whether there is a speed, TPOT or TTFT limit."""
        return (self.min_tokens_per_s, self.max_tpot_s, self.max_ttft_s) != (None, None, None)


def split_devices(split: str) -> int:
    """Devices that a split such as `4+4` takes. ValueError if it is none."""
    if not _SPLIT.fullmatch(split):
        raise ValueError(
            f"split is {split!r}; expected devices of the target and of the draft, such as 4+4, or 8 if they share them"
        )
    return sum(math.prod(map(int, group.split("x"))) for group in split.split("+"))


def cost_per_million(price_per_hour: float, num_devices: int, tokens_per_s: float) -> float:
    """Cost of a million tokens of one user, on devices of this price each."""
    return 1e6 * price_per_hour * num_devices / (3600 * tokens_per_s)
