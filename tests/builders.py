"""Profiles for tests: latencies that are easy to add up, or that look like a machine's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from swiftspec.artifacts.profile import HostPoint, Profile, StepPoint
from swiftspec.artifacts.trace import AcceptanceTrace, Guesser
from swiftspec.files.document import ModelRef, Origin
from swiftspec.policies import POLICIES, DraftKind, Layout, Policy, Request
from swiftspec.policies.base import Shape
from swiftspec.policies.effects import Program, Role
from swiftspec.simulator.driver import simulate
from swiftspec.timing.latency import Latency, Provenance
from swiftspec.timing.timeline import Phase, Timeline
from tools.iid_trace import synthesise_trace

SPLIT = {Role.TARGET: 1, Role.DRAFT: 1}
MODEL = ModelRef(model="synthetic", dtype="float32")
WHOSE = {
    **dict.fromkeys((Phase.EXPAND, Phase.FUZZY), Role.DRAFT),
    **dict.fromkeys((Phase.VERIFY, Phase.EXIT, Phase.FINISH), Role.TARGET),
}

# Those that work with a draft without masks.
OF_SERIAL_DRAFTS = {name: policy for name, policy in POLICIES.items() if DraftKind.SERIAL in policy.drafts}


def with_guesses(trace: AcceptanceTrace) -> AcceptanceTrace:
    """As if recorded: grouped layers lose nothing, and half of the target knows what the draft does."""
    prompts = tuple(replace(prompt, guesses=dict.fromkeys(Guesser, prompt.draft)) for prompt in trace.prompts)
    return replace(trace, prompts=prompts, source="recorded")


def constant_profile(
    *,
    expand_s: float,
    verify_s: float,
    prefill_s: float = 1.0,
    busy_factor: float = 1.0,
    exit_share: float = 0.5,
    host_s: Mapping[Phase, float] | None = None,
    degrees: Sequence[int] = (1, 2),
) -> Profile:
    """Every forward of a phase takes the same time; with a busy peer, `busy_factor` times as long."""
    shares = {Phase.EXIT: exit_share, Phase.FINISH: 1 - exit_share}

    def steps() -> Iterator[StepPoint]:
        for degree in degrees:
            for busy in (False, True):
                factor = busy_factor if busy else 1.0
                for phase, whose in WHOSE.items():
                    seconds = factor * (expand_s if whose is Role.DRAFT else verify_s)
                    seconds *= shares.get(phase, 1.0)
                    yield step_point(whose, phase, [seconds], degree=degree, busy=busy, rows=32, context=256)
                for role in Role:
                    yield step_point(role, Phase.PREFILL, [prefill_s * factor], degree=degree, busy=busy, context=0)

    host = [host_point(phase, seconds) for phase, seconds in (host_s or {}).items()]
    return profile(tuple(steps()), tuple(host))


def machine_profile(*, cost_ratio: float = 12.0, num_devices: int = 2, noise: float = 0.05) -> Profile:
    """A target forward costs `cost_ratio` draft forwards of 1 ms; rows, context, degree and a busy peer matter."""
    rng = np.random.default_rng(7)

    def steps() -> Iterator[StepPoint]:
        for degree in range(1, num_devices + 1):
            for busy in (False, True):
                scale = 1e-3 * (1.08 if busy else 1.0) / degree**0.3
                for context in (16, 256, 640):
                    stretch = scale * (1 + context / 4000)
                    step = partial(step_point, degree=degree, busy=busy, context=context)
                    for rows in (1, 2, 4, 8, 12):
                        seconds = stretch * (1 + 0.06 * rows) * jitter(rng, noise)
                        yield step(Role.DRAFT, Phase.EXPAND, seconds, rows=rows)
                        yield step(Role.DRAFT, Phase.FUZZY, 0.8 * seconds, rows=rows)
                    for rows in (1, 4, 8, 16, 32):
                        seconds = stretch * cost_ratio * (1 + 0.015 * rows) * jitter(rng, noise)
                        yield step(Role.TARGET, Phase.VERIFY, seconds, rows=rows)
                        yield step(Role.TARGET, Phase.EXIT, 0.55 * seconds, rows=rows)
                        yield step(Role.TARGET, Phase.FINISH, 0.5 * seconds, rows=rows)
                for role, factor in ((Role.DRAFT, 1.0), (Role.TARGET, cost_ratio)):
                    for rows in (16, 256):
                        seconds = scale * factor * (1 + 0.02 * rows) * jitter(rng, noise)
                        yield step_point(role, Phase.PREFILL, seconds, degree=degree, busy=busy, rows=rows, context=0)

    host = {Phase.EXPAND: 8e-5, Phase.VERIFY: 5e-5, Phase.COMPACT: 6e-5, Phase.SEND: 7e-5, Phase.COMMIT: 1e-5}
    points = [host_point(phase, seconds) for phase, seconds in host.items()]
    return profile(tuple(steps()), (*points, host_point(Phase.WAIT, 6e-5)), num_devices=num_devices)


def divided_profile(*, factor: float, num_devices: int = 2, ranks: int = 2) -> Profile:
    """A machine's profile, with groups divided by ranks if possible, whose forwards are longer by a factor."""
    whole = machine_profile(num_devices=num_devices)
    divided = [
        step.model_copy(update={"ranks": ranks, "quantiles_s": tuple(factor * value for value in step.quantiles_s)})
        for step in whole.steps
        if not step.degree % ranks
    ]
    return whole.model_copy(update={"steps": (*whole.steps, *divided)})


def jitter(rng: np.random.Generator, noise: float) -> np.ndarray:
    return np.exp(noise * rng.standard_normal(40))


def step_point(
    role: Role,
    phase: Phase,
    samples_s: Sequence[float] | np.ndarray,
    *,
    degree: int = 1,
    busy: bool = False,
    rows: int = 1,
    context: int = 16,
) -> StepPoint:
    latency = Latency.of_samples([float(sample) for sample in samples_s], Provenance.MEASURED)
    return StepPoint.model_validate(
        {
            "role": role,
            "phase": phase,
            "degree": degree,
            "peer_busy": busy,
            "rows": rows,
            "context": context,
            "quantiles_s": latency.quantiles_s,
            "num_samples": len(samples_s),
            "provenance": Provenance.MEASURED,
        }
    )


def host_point(phase: Phase, seconds: float) -> HostPoint:
    latency = Latency.of_samples([seconds], Provenance.MEASURED)
    return HostPoint(
        phase=phase, rows=1, quantiles_s=latency.quantiles_s, num_samples=1, provenance=Provenance.MEASURED
    )


def profile(steps: tuple[StepPoint, ...], host: tuple[HostPoint, ...], *, num_devices: int = 2) -> Profile:
    return Profile(
        origin=Origin.here(),
        device="test",
        num_devices=num_devices,
        target=MODEL,
        draft=MODEL,
        steps=steps,
        host=host,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(Shape):
    """Given programs on two groups."""

    scripts: Mapping[Role, Program]
    name: ClassVar[str] = "scripted"
    layout: ClassVar[Layout] = Layout.DISAGGREGATED
    draft_rows: ClassVar[int] = 1
    verifies_trees: ClassVar[bool] = False

    @property
    def target_rows(self) -> int:
        return 1

    def programs(self, request: Request) -> Mapping[Role, Program]:
        return self.scripts


def chain_trace(*, num_tokens: int, acceptance: float = 1.0, prompts: int = 1, seed: int = 0) -> AcceptanceTrace:
    return synthesise_trace((acceptance,), prompt_lengths=(4,) * prompts, num_tokens=num_tokens, seed=seed)


def simulate_one(policy: Policy, profile: Profile, trace: AcceptanceTrace, **kwargs: Any) -> Timeline:
    (timeline,) = simulate(policy, degrees=SPLIT, profile=profile, trace=trace, **kwargs)
    return timeline
