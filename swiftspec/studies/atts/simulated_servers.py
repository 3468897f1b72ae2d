"""Servers in simulated time: those of plans, and those of which only the token times are known."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import simpy

from swiftspec.policies.effects import Role
from swiftspec.simulator.jobs import Job
from swiftspec.simulator.serving import Run, Serving

_ROUNDING = 1e-6  # of a token
Events = Generator[simpy.Event, Any, None]


class SimulatedServer(Protocol):
    """A server of one model; both methods are SimPy processes that last as long as the request."""

    def write(self, prompt_tokens: int, num_tokens: int) -> Events:
        """Read a prompt, and write tokens."""

    def score(self, num_tokens: int) -> Events:
        """Score a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanServers:
    """Servers of plans, empty ones in each simulation.

    Parameters
    ----------
    servings : mapping of Role to Serving
    num_prompts : mapping of Role to int
        Of the traces that their texts come from.
    seed : int
    """

    servings: Mapping[Role, Serving]
    num_prompts: Mapping[Role, int]
    seed: int

    def __call__(self, env: simpy.Environment) -> dict[Role, SimulatedServer]:
        return {
            role: PlanServer(serving.open(env, seed=self.seed), num_prompts=self.num_prompts[role])
            for role, serving in self.servings.items()
        }


class PlanServer:
    """A plan's server. Its texts are of the plan's trace, from another prompt each time, in the wanted lengths."""

    def __init__(self, serving: Run, *, num_prompts: int) -> None:
        self._serving = serving
        self._num_prompts = num_prompts
        self._num_jobs = 0

    def write(self, prompt_tokens: int, num_tokens: int) -> Events:
        """As `SimulatedServer.write`."""
        yield self._submit(prompt_tokens, num_tokens, is_scored=False)

    def score(self, num_tokens: int) -> Events:
        """As `SimulatedServer.score`."""
        yield self._submit(num_tokens, 0, is_scored=True)

    def _submit(self, prompt_tokens: int, output_tokens: int, *, is_scored: bool) -> simpy.Event:
        index = self._num_jobs % self._num_prompts
        self._num_jobs += 1
        job = Job(
            arrival_s=0.0,
            prompt_index=index,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            is_scored=is_scored,
        )
        return self._serving.submit(job).done


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of a server.

    Parameters
    ----------
    token_s : float
        Per output token of a request that is alone.
    sharing_s : float
        By which that is longer for each other request that writes at the same time.
    prompt_token_s : float
        Per token of a prompt, read or scored; it delays no other request.
    """

    token_s: float
    sharing_s: float = 0.0
    prompt_token_s: float = 0.0


class PacedServer:
    """A server that writes tokens at a pace. All that write at the same time are equally fast."""

    def __init__(self, env: simpy.Environment, pace: Pace) -> None:
        self._env, self._pace = env, pace
        self._left: dict[simpy.Event, float] = {}  # tokens of each request that writes
        self._counted_s = env.now
        self._num_changes = 0

    def write(self, prompt_tokens: int, num_tokens: int) -> Events:
        """As `SimulatedServer.write`."""
        yield from self.score(prompt_tokens)
        done = self._env.event()
        self._count()
        self._left[done] = num_tokens
        self._env.process(self._watch())
        yield done

    def score(self, num_tokens: int) -> Events:
        """As `SimulatedServer.score`."""
        yield self._env.timeout(num_tokens * self._pace.prompt_token_s)

    @property
    def _token_s(self) -> float:
        return self._pace.token_s + self._pace.sharing_s * (len(self._left) - 1)

    def _count(self) -> None:
        """Count the tokens that were written since the number of requests has changed."""
        written = (self._env.now - self._counted_s) / self._token_s if self._left else 0.0
        self._counted_s = self._env.now
        self._num_changes += 1
        for done in self._left:
            self._left[done] -= written

    def _watch(self) -> Events:
        """End the requests whose tokens are written, one after another, until another one comes."""
        number = self._num_changes
        while self._left:
            first = min(self._left, key=lambda done: self._left[done])
            yield self._env.timeout(max(0.0, self._left[first] * self._token_s))
            if number != self._num_changes:
                return
            self._count()
            number = self._num_changes
            for done in [done for done, left in self._left.items() if left < _ROUNDING or done is first]:
                del self._left[done]
                done.succeed()
