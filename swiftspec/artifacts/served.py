"""What a profile of a server says of it beside its steps."""

from dataclasses import replace

from pydantic import Field

from swiftspec.engines import engine_named
from swiftspec.engines.description import Engine, StepLimits
from swiftspec.engines.words import Method
from swiftspec.files.document import Facts

__all__ = ["Served"]


class Served(Facts):
    """A server that a profile was measured on, from outside.

    engine: with its release, `vllm@0.32.0`.
    methods: of drafting that were measured, see `engines.words.Method`.
    options: of its command, in its own words, but models, address and drafts.
    step_tokens, requests, prefix_block: its limits, as in `StepLimits`.
    runs_ahead: whether the next step is formed while one runs.
    cache_tokens: tokens that its KV cache has room for; beside_draft: the same next to the profile's draft.
    request_s, prompt_token_s: above the engine, as in `engines.constants`.
    median_error, largest_error: of the fitted steps, as shares of the measured ones.
    num_measured: measurements that the steps were fitted to.
    minutes: time that measuring took, starts included.
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
    median_error: float = Field(ge=0)
    largest_error: float = Field(ge=0)
    num_measured: int = Field(ge=1)
    minutes: float = Field(ge=0)

    @property
    def description(self) -> Engine:
        """The engine at its release, with the methods that were measured."""
        engine = engine_named(self.engine)
        return replace(
            engine, methods={method: words for method, words in engine.methods.items() if method in self.methods}
        )

    @property
    def limits(self) -> StepLimits:
        """The limits of its steps."""
        return StepLimits(
            step_tokens=self.step_tokens,
            requests=self.requests,
            prefix_block=self.prefix_block,
            runs_ahead=self.runs_ahead,
            captured_tokens=0,  # measured steps are what they are
        )
