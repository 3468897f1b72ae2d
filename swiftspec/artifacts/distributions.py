"""Arrival processes and length distributions of a workload, by name. Drawing from them is `swiftspec.workload`'s."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from swiftspec.errors import FieldError
from swiftspec.files.document import Facts
from swiftspec.files.reading import shown

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
            raise FieldError(field, shown(text), f"expected {cls.syntax}")
        given = {cls.name_field: name, **dict(zip(wanted, values, strict=True))}
        return cls.checked(given, source=f"{field} is {shown(text)}")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        name = getattr(self, self.name_field)
        wanted = self.parameters[name]
        for field in {each for names in self.parameters.values() for each in names}:
            value = getattr(self, field)
            if (value is None) == (field in wanted):
                found = "missing" if value is None else shown(value)
                raise ValueError(f"{field} is {found}; {name} takes {' and '.join(wanted) or 'no parameters'}")
        return self

    def __str__(self) -> str:
        name = getattr(self, self.name_field)
        return ":".join([name, *(_number(getattr(self, field)) for field in self.parameters[name])])


def _number(value: float) -> str:
    """The shortest text that is read as the same number."""
    return repr(value).removesuffix(".0")


class Stage(Facts):
    """A rate in requests per second, and for how many seconds it lasts."""

    rate: Rate
    seconds: float = Field(gt=0, le=1e10)

    @property
    def num_requests(self) -> int:
        """Requests that come meanwhile."""
        return round(self.rate * self.seconds)

    def __str__(self) -> str:
        return f"{_number(self.rate)}x{_number(self.seconds)}"


class Arrivals(_Named):
    """Arrival process of a workload.

    rate: requests per second, of an open process; the mean of its stages, if it has any.
    shape: of gamma-distributed gaps, vLLM's burstiness: their coefficient of variation is 1/sqrt(shape).
    num_clients: of a closed loop. Each sends its next request when its last one has ended.
    stages: rates one after another, with the seconds of each.

    Examples
    --------
    >>> str(Arrivals(process="gamma", rate=2.0, shape=0.5))
    'gamma:2:0.5'
    >>> Arrivals.parse("poisson:2x600,4x300", field="arrivals").num_requests
    2400
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
    stages: tuple[Stage, ...] = Field(default=(), max_length=1000, exclude_if=lambda stages: not stages)

    @classmethod
    def parse(cls, text: str, *, field: str) -> Self:
        """As `_Named.parse`; `poisson:2x600,4x300` has two stages."""
        name, *values = text.split(":")
        if not values or "x" not in values[0]:
            return super().parse(text, field=field)
        source, wanted = f"{field} is {shown(text)}", cls.parameters.get(name, ())
        if "rate" not in wanted or len(wanted) != len(values):
            raise ValueError(f"{source}; expected {cls.syntax}")
        parts = [part.partition("x") for part in values[0].split(",")]
        stages = [Stage.checked({"rate": rate, "seconds": seconds}, source=source) for rate, _, seconds in parts]
        mean = sum(each.rate * each.seconds for each in stages) / sum(each.seconds for each in stages)
        given = dict(zip(wanted, [mean, *values[1:]], strict=True))
        return cls.checked({"process": name, "stages": stages, **given}, source=source)

    @property
    def num_requests(self) -> int | None:
        """Requests of all stages together; None without stages."""
        return sum(each.num_requests for each in self.stages) if self.stages else None

    def at(self, rate: float) -> Self:
        """The same process with other requests per second: time is stretched."""
        assert self.rate is not None, "only open processes have a rate"
        factor = rate / self.rate
        stages = tuple(Stage(rate=each.rate * factor, seconds=each.seconds / factor) for each in self.stages)
        return self.model_copy(update={"rate": rate, "stages": stages})

    @model_validator(mode="after")
    def _stages_of_an_open_process(self) -> Self:
        if self.stages and self.rate is None:
            raise ValueError(f"stages has {len(self.stages)}; {self.process} has no rate")
        return self

    def __str__(self) -> str:
        if not self.stages:
            return super().__str__()
        shape = [] if self.shape is None else [_number(self.shape)]
        return ":".join([self.process, ",".join(map(str, self.stages)), *shape])


class Lengths(_Named):
    """Distribution of the lengths of prompts or of outputs, in tokens.

    tokens: of every one, if the length is fixed.
    least, most: bounds of a uniform distribution, both included.
    mean, cv: mean and coefficient of variation of a log-normal distribution, before rounding.

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
