"""Arrival processes and length distributions of a workload, by name. Drawing from them is `swiftspec.workload`'s."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from swiftspec.artifacts.document import Facts
from swiftspec.files.reading import shown

__all__ = [
    "LEAST_RATE",
    "MOST_RATE",
    "MOST_TOKENS",
    "Arrivals",
    "Distribution",
    "Lengths",
    "Process",
    "Rate",
    "TokenCount",
]

MOST_TOKENS = 10_000_000  # of a prompt or an output: longer than any model's context
LEAST_RATE, MOST_RATE = 1e-4, 1e6  # requests per second: one in three hours, one in a microsecond
Rate = Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]
TokenCount = Annotated[int, Field(ge=1, le=MOST_TOKENS)]


class Process(StrEnum):
    """Arrival process."""

    POISSON = "poisson"
    GAMMA = "gamma"
    CONSTANT = "constant"
    CLOSED = "closed"
    REPLAY = "replay"  # of a load trace


class Distribution(StrEnum):
    """Distribution of lengths, or the kind of file that they were taken from."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"
    PROMPTS = "prompts"  # whose prompts the requests name
    REPLAY = "replay"


class _Named(Facts):
    """A name with the parameters that belong to it, written `NAME:PARAMETER:PARAMETER`."""

    name_field: ClassVar[str]
    syntax: ClassVar[str]
    parameters: ClassVar[Mapping[str, tuple[str, ...]]]

    @classmethod
    def parse(cls, text: str, *, field: str) -> Self:
        """From `NAME:PARAMETER:PARAMETER`, as `str` writes it. ValueError naming the field.

        Names without parameters stand for files, and cannot be asked for.
        """
        name, *values = text.split(":")
        wanted = cls.parameters.get(name, ())
        if not wanted or len(wanted) != len(values):
            raise ValueError(f"{field} is {shown(text)}; expected {cls.syntax}")
        given = {cls.name_field: name, **dict(zip(wanted, values, strict=True))}
        return cls.checked(given, source=f"{field} is {shown(text)}")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        name = getattr(self, self.name_field)
        wanted = self.parameters[name]
        for field in type(self).model_fields:
            value = getattr(self, field)
            if field != self.name_field and (value is None) == (field in wanted):
                found = "missing" if value is None else shown(value)
                raise ValueError(f"{field} is {found}; {name} takes {' and '.join(wanted) or 'no parameters'}")
        return self

    def __str__(self) -> str:
        name = getattr(self, self.name_field)
        return ":".join([name, *(_number(getattr(self, field)) for field in self.parameters[name])])


def _number(value: float) -> str:
    """The shortest text that is read as the same number."""
    return repr(value).removesuffix(".0")


class Arrivals(_Named):
    """Arrival process of a workload.

    Attributes
    ----------
    process : Process
    rate : float, optional
        Requests per second, of an open process.
    shape : float, optional
        Shape of gamma-distributed gaps, vLLM's burstiness: their coefficient of variation is 1/sqrt(shape).
    num_clients : int, optional
        Clients of a closed loop. Each sends its next request when its last one has ended.

    Examples
    --------
    >>> str(Arrivals(process="gamma", rate=2.0, shape=0.5))
    'gamma:2:0.5'
    """

    name_field: ClassVar[str] = "process"
    syntax: ClassVar[str] = "poisson:RATE, gamma:RATE:SHAPE, constant:RATE or closed:CLIENTS"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {
        Process.POISSON: ("rate",),
        Process.GAMMA: ("rate", "shape"),
        Process.CONSTANT: ("rate",),
        Process.CLOSED: ("num_clients",),
        Process.REPLAY: (),
    }

    process: Process
    rate: Rate | None = None
    shape: float | None = Field(default=None, ge=1e-3, le=1e6)
    num_clients: int | None = Field(default=None, ge=1, le=1_000_000)


class Lengths(_Named):
    """Distribution of the lengths of prompts or of outputs, in tokens.

    Attributes
    ----------
    distribution : Distribution
    tokens : int, optional
        Of every one, if the length is fixed.
    least, most : int, optional
        Bounds of a uniform distribution, both included.
    mean, cv : float, optional
        Mean and coefficient of variation of a log-normal distribution, before rounding.

    Examples
    --------
    >>> Lengths.parse("uniform:100:200", field="prompt_tokens").most
    200
    """

    name_field: ClassVar[str] = "distribution"
    syntax: ClassVar[str] = "fixed:TOKENS, uniform:LEAST:MOST or lognormal:MEAN:CV"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {
        Distribution.FIXED: ("tokens",),
        Distribution.UNIFORM: ("least", "most"),
        Distribution.LOGNORMAL: ("mean", "cv"),
        Distribution.PROMPTS: (),
        Distribution.REPLAY: (),
    }

    distribution: Distribution
    tokens: TokenCount | None = None
    least: TokenCount | None = None
    most: TokenCount | None = None
    mean: float | None = Field(default=None, ge=1, le=MOST_TOKENS)
    cv: float | None = Field(default=None, gt=0, le=100)

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ValueError(f"least is {self.least}, above most, {self.most}; expected ascending bounds")
        return self
