"""SamplingParams: how a target's tokens are drawn, as a trace and its plans know it."""

from typing import Annotated, Any

from pydantic import Field

from swiftspec.files.document import Facts

_MOST_SEED = 10**17  # with the prompts' numbers, exact in every JSON reader of this package


class SamplingParams(Facts):
    """Parameters of the same names as those of `Engine.generate`.

    seed: of the first prompt; prompt n, from 0, has the seed `seed + n`, so that no two prompts share their noise.
    """

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=_MOST_SEED)] = 0

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, so that the other parameters change nothing."""
        return self.temperature == 0.0

    def of_prompt(self, number: int) -> dict[str, Any]:
        """The prompt's, as keyword arguments of a sampler. number: its place among all, from 0."""
        return {**self.model_dump(), "seed": self.seed + number}

    def __str__(self) -> str:
        if self.is_greedy:
            return "greedy"
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top_p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"top_k {self.top_k}"] if self.top_k else []
        return ", ".join([*parts, f"seed {self.seed}"])


GREEDY = SamplingParams()
