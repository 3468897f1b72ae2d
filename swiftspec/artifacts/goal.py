"""Goal of a plan, for one request at a time or for a load: the objective to optimise and the limits to keep."""

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Self

from pydantic import AliasChoices, Field, model_validator

from swiftspec.artifacts.workload import RequestClass
from swiftspec.errors import FieldError
from swiftspec.files.document import Facts

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
    ttft_s, tpot_s : float, optional
        Highest seconds until the first token, and per output token after it: means of one user's requests; under a load
        of each request, instead of the limits of its class.
    percentile : float, optional
        Under a load, a candidate is acceptable only if this percentage of all requests keep their limits. Any is if not
        given.
    classes : tuple of RequestClass
        Of a load, with the limits that count; see `under`.
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
    >>> swiftspec.Goal(objective="tpot", ttft_s=0.5).is_limited
    True
    """

    objective: Objective = Objective.TOKENS_PER_S
    min_tokens_per_s: float | None = Field(default=None, gt=0)
    tpot_s: float | None = Field(default=None, gt=0, validation_alias=AliasChoices("tpot_s", "max_tpot_s"))
    ttft_s: float | None = Field(default=None, gt=0, validation_alias=AliasChoices("ttft_s", "max_ttft_s"))
    percentile: float | None = Field(default=None, gt=0, le=100)
    classes: tuple[RequestClass, ...] = Field(default=(), exclude_if=lambda classes: not classes)
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
        """Whether there is a speed, TPOT or TTFT limit; of a load, one that any request has."""
        if self.classes:
            return any(limit is not None for each in self.classes for limit in (each.ttft_s, each.tpot_s))
        return (self.min_tokens_per_s, self.tpot_s, self.ttft_s) != (None, None, None)

    @property
    def alone(self) -> Self:
        """The goal of one request at a time: without what limits the requests of a load."""
        return self.model_copy(update={"tpot_s": None, "ttft_s": None, "percentile": None, "classes": ()})

    def under(self, classes: Sequence[RequestClass]) -> Self:
        """The goal for the classes of a load: a limit of its own replaces the one of every class.

        ValueError if there is a percentile, and nothing to be kept.
        """
        own = {name: limit for name in ("ttft_s", "tpot_s") if (limit := getattr(self, name)) is not None}
        goal = self.model_copy(update={"classes": tuple(each.model_copy(update=own) for each in classes)})
        if self.percentile is not None and not goal.is_limited:
            raise FieldError(
                "percentile",
                f"{self.percentile:g}, but there are no limits to keep: neither ttft_s nor tpot_s is given, "
                "and no class of the workload has one",
            )
        return goal

    def accepts(self, attained: float) -> bool:
        """Whether this share of a load's requests is enough."""
        return self.percentile is None or 100 * attained >= self.percentile - 1e-9

    def score(self, *, attained: float, goodput: float, e2e_s: float) -> tuple[bool, float, float]:
        """Sort key of a candidate under a load, higher is better: acceptable, then goodput, then mean end-to-end time.

        Without any limit, the end-to-end time alone. Goodputs that agree in three digits are equal: how soon the last
        request ends moves more than that.
        """
        return (self.accepts(attained), float(f"{goodput:.3g}"), -e2e_s) if self.is_limited else (True, 0.0, -e2e_s)


def split_devices(split: str) -> int:
    """Devices that a split such as `4+4` takes. ValueError if it is none."""
    if not _SPLIT.fullmatch(split):
        raise FieldError(
            "split",
            repr(split),
            "expected devices of the target and of the draft, such as 4+4, or 8 if they share them",
        )
    return sum(math.prod(map(int, group.split("x"))) for group in split.split("+"))


def cost_per_million(price_per_hour: float, num_devices: int, tokens_per_s: float) -> float:
    """Cost of a million tokens of one user, on devices of this price each."""
    return 1e6 * price_per_hour * num_devices / (3600 * tokens_per_s)
