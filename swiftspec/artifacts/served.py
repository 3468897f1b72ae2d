"""Facts of the server that a profile was measured on, beside its steps."""

from dataclasses import replace
from statistics import NormalDist, median
from typing import Final

from pydantic import Field

from swiftspec.engines import engine_named
from swiftspec.engines.description import Engine, StepLimits
from swiftspec.engines.words import Method
from swiftspec.files.document import Facts

_MEDIAN_DEVIATION: Final = NormalDist().inv_cdf(0.75)  # of a standard normal, from its mean


class MeasuredStep(Facts):
    """A step as it was measured, and as it was fitted.

    drafting: how its server drafts. sequences: requests that decode. rows: of all of them. cache_tokens: in their
    caches together. levels: draft tokens of each. read, read_before: tokens of a prompt that are read, and those of it
    that were read before. All are means of the steps that were measured together. seconds: the median of several times.
    """

    drafting: str
    sequences: int = Field(ge=0)
    rows: float = Field(ge=0)
    cache_tokens: float = Field(ge=0)
    levels: float = Field(ge=0)
    read: int = Field(ge=0)
    read_before: int = Field(ge=0)
    seconds: float = Field(gt=0)
    fitted_s: float = Field(gt=0)

    @property
    def error(self) -> float:
        """Fitted over measured, minus 1."""
        return self.fitted_s / self.seconds - 1


class Served(Facts):
    """A server that a profile was measured on, from outside.

    engine: with its release, `vllm@0.32.0`.
    methods: of drafting that were measured, see `engines.words.Method`.
    options: of its command, in its own words, but models, address and drafts.
    step_tokens, requests, prefix_block: its limits, as in `StepLimits`.
    runs_ahead: whether the next step is formed while one runs.
    cache_tokens: tokens that its KV cache has room for; beside_draft: the same next to the profile's draft.
    request_s, prompt_token_s: above the engine, as in `engines.constants`.
    measured: what the steps were fitted to.
    minutes: time that measuring took, starts included. pace_s: what the work of `profiler.served.core_pace` took on the
    server's cores meanwhile; None where they were not watched.
    """

    engine: str
    methods: tuple[Method, ...]
    options: tuple[str, ...] = ()
    step_tokens: int = Field(ge=1)
    requests: int = Field(ge=1)
    prefix_block: int = Field(ge=0)
    runs_ahead: bool
    cache_tokens: int = Field(ge=1)
    beside_draft: int | None = Field(default=None, ge=1)
    request_s: float = Field(ge=0)
    prompt_token_s: float = Field(ge=0)
    measured: tuple[MeasuredStep, ...] = Field(min_length=1)
    minutes: float = Field(ge=0)
    pace_s: float | None = Field(default=None, gt=0, exclude_if=lambda seconds: seconds is None)

    @property
    def median_error(self) -> float:
        """Of the fitted steps, as a share of the measured ones."""
        return median(abs(step.error) for step in self.measured)

    @property
    def step_error(self) -> float:
        """Relative standard deviation of a step's time, of which the median error is that of a normal law."""
        return self.median_error / _MEDIAN_DEVIATION

    @property
    def description(self) -> Engine:
        """The engine at its release, with the methods that were measured and a draft server, which is none of its."""
        engine, known = engine_named(self.engine), {*self.methods, Method.DRAFT_SERVER}
        return replace(engine, methods={method: words for method, words in engine.methods.items() if method in known})

    @property
    def limits(self) -> StepLimits:
        return StepLimits(
            step_tokens=self.step_tokens,
            requests=self.requests,
            prefix_block=self.prefix_block,
            runs_ahead=self.runs_ahead,
            captured_tokens=0,  # measured steps are what they are
        )
