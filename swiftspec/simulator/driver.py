"""The simulator's driver for one request at a time: role programs are SimPy processes. Emits the engine's Timeline.

Where the engine computes, it waits for the drawn latency and asks the oracle (see `process`). No torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import simpy

from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.lookup.known_text import SharedOutputs
from swiftspec.simulator.draft_server import served_programs, usual_patience_s
from swiftspec.simulator.forward_errors import EXACT, ForwardErrors
from swiftspec.simulator.latency import LatencySampler, LatencyTable
from swiftspec.simulator.oracle import CandidatePool, TraceOracle
from swiftspec.simulator.process import DeviceGroup, OneProcess, RequestPart
from swiftspec.timing.latency import Provenance
from swiftspec.timing.steps import Latencies
from swiftspec.timing.timeline import Span, Timeline

# Of the timeline shown for a plan.
_NUM_PROMPTS = 5
_MOST_TOKENS = 96
_NUM_ROUNDS = 10


def simulate(
    policy: Policy,
    *,
    degrees: Mapping[Role, int],
    profile: Profile,
    trace: AcceptanceTrace,
    prompt_indices: Sequence[int] | None = None,
    seed: int = 0,
    max_new_tokens: int | None = None,
    ranks: Mapping[Role, int] | None = None,
    errors: ForwardErrors = EXACT,
) -> list[Timeline]:
    """Timelines of a policy on a trace's prompts, one after another on one clock that starts at 0.

    degrees: devices of each role's group; a co-located policy's draft runs on the target's.
    prompt_indices: of the trace's prompts, in this order; all by default.
    seed: the same one, policy and files give the same timelines. A prompt's draws do not depend on the other prompts.
    max_new_tokens: never more than were traced.
    ranks: processes that divide each role's group, or each target group, as in `StepPoint`; one if not given. A
        co-located policy's draft has the target's.
    errors: of forwards, as known. If there are any, every prompt is simulated twice: with forwards scaled by its draw,
        and, after all prompts, by the opposite draw.

    ValueError: if a group is missing, a prompt does not exist, or the profile has no steps for a degree.
    """
    simulator = Simulator(profile, trace, errors=errors)
    timelines: list[Timeline] = []
    clock_s = 0.0
    for mirrored in errors.mirrors:
        simulation = simulator.run(
            policy,
            degrees=degrees,
            prompt_indices=prompt_indices,
            seed=seed,
            max_new_tokens=max_new_tokens,
            ranks=ranks,
            mirrored=mirrored,
            start_s=clock_s,
        )
        timelines += simulation.timelines
        clock_s = simulation.end_s
    return timelines


def typical_timeline(planned: Planned) -> Timeline:
    """The chosen candidate on the prompt, of a few spread over the trace, whose TPOT is closest to the plan's.

    Prefers prompts with enough rounds to show, if there are any.
    """
    chosen, num_prompts = planned.plan.chosen, len(planned.trace.prompts)
    indices = np.linspace(0, num_prompts - 1, min(num_prompts, _NUM_PROMPTS)).round().astype(int)
    timelines = simulate(
        chosen.build(),
        degrees={role: len(devices) for role, devices in chosen.groups.items()},
        ranks=chosen.ranks,
        profile=planned.profile,
        trace=planned.trace,
        prompt_indices=indices.tolist(),
        max_new_tokens=min(planned.plan.max_new_tokens, _MOST_TOKENS),
    )
    expected_s = chosen.prediction.metrics.tpot_s
    long = [timeline for timeline in timelines if len(timeline.verifications_s) > _NUM_ROUNDS]
    return min(long or timelines, key=lambda timeline: abs(timeline.tpot_s - expected_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Timelines, the seconds charged in them by provenance (both roles together), and when the last process ended."""

    timelines: tuple[Timeline, ...]
    seconds: Mapping[Provenance, float]
    end_s: float


class Simulator:
    """Simulates many policies on one profile and trace; prices and candidates are looked up once.

    errors: known errors of forwards, of which each prompt has its own draw; exact by default. oracle: factory of the
    object that answers a process's forwards. Tests use a real draft, on the same simulated clock.
    """

    def __init__(
        self,
        profile: Profile | Latencies,
        trace: AcceptanceTrace,
        *,
        errors: ForwardErrors = EXACT,
        oracle: Callable[..., TraceOracle] = TraceOracle,
    ) -> None:
        self.errors = errors
        self._oracle = oracle
        self._prices = LatencyTable(profile.latencies if isinstance(profile, Profile) else profile)
        self._pool = CandidatePool(trace)
        self.trace = trace

    def run(
        self,
        policy: Policy,
        *,
        degrees: Mapping[Role, int],
        prompt_indices: Sequence[int] | None = None,
        seed: int = 0,
        max_new_tokens: int | None = None,
        ranks: Mapping[Role, int] | None = None,
        mirrored: bool = False,
        start_s: float = 0.0,
    ) -> Simulation:
        """As `simulate`, every prompt once; mirrored: with the opposite draws of the forwards' errors.

        A policy that searches earlier outputs has those of the prompts before, as on one server.
        """
        meter = LatencySampler(
            self._prices,
            policy=policy.name,
            layout=policy.layout,
            degrees=group_degrees(degrees, policy),
            ranks=group_ranks(ranks or {}, policy),
        )
        patience_s = usual_patience_s(self._prices, policy, self.trace, meter.degrees, meter.ranks, sequences=1)
        programs = policy.programs
        if patience_s is not None:
            programs = partial(served_programs, policy, patience_s=patience_s)
        clock_s = start_s
        timelines: list[Timeline] = []
        earlier = SharedOutputs().known_to(policy)
        for index in range(len(self.trace.prompts)) if prompt_indices is None else prompt_indices:
            if not 0 <= index < len(self.trace.prompts):
                raise ValueError(f"prompt_indices has {index}; expected one of the trace's {len(self.trace.prompts)}")
            meter.seed(seed, index, scales=self.errors.scales(seed=seed, index=index, mirrored=mirrored))
            is_alone = policy.layout is not Layout.DISAGGREGATED
            env = OneProcess(initial_time=clock_s) if is_alone else simpy.Environment(initial_time=clock_s)
            devices = device_groups(env, policy, meter)
            oracle = partial(self._oracle, self._pool, self.trace.prompts[index], prompt_index=index)
            oracles = [oracle(seed=(seed, index, *device.stream)) for device in devices]  # each has caches of its own
            parts = [RequestPart(device, oracle=own) for device, own in zip(devices, oracles, strict=True)]
            connect(parts)
            request = replace(oracles[0].request(max_new_tokens), earlier=earlier)
            spans = _run_request(env, parts, programs, request)
            timelines.append(Timeline(request=self.trace.prompts[index].prompt_id, start_s=clock_s, spans=spans))
            clock_s = float(env.now)
        return Simulation(timelines=tuple(timelines), seconds=meter.seconds, end_s=clock_s)


def device_groups(
    env: simpy.Environment, policy: Policy, meter: LatencySampler, *, has_draft: bool = True
) -> list[DeviceGroup]:
    """The groups that a policy runs on, the target's first and the draft's last, if it has its own, and not others'."""
    if policy.layout is not Layout.DISAGGREGATED or not has_draft:
        return [DeviceGroup(env, Role.TARGET, meter=meter)]
    targets = [DeviceGroup(env, Role.TARGET, meter=meter, group=group) for group in range(policy.target_groups)]
    draft = DeviceGroup(env, Role.DRAFT, meter=meter)
    for target in targets:
        target.peers.append(draft)
        draft.peers.append(target)
    return [*targets, draft]


def connect(parts: Sequence[RequestPart]) -> None:
    """Give a request's parts on its targets a channel to that on its draft."""
    *targets, draft = parts
    for target in targets:
        target.connect(draft)


def group_degrees(degrees: Mapping[Role, int], policy: Policy) -> Mapping[Role, int]:
    """Devices of each role's group, those of a co-located draft included. ValueError if one is missing."""
    needed = set(Role) if policy.layout is Layout.DISAGGREGATED else {Role.TARGET}
    if missing := sorted(needed - set(degrees)):
        raise ValueError(f"degrees has no {missing[0]}; {policy.name} is {policy.layout}")
    num_targets, groups = degrees[Role.TARGET], policy.target_groups
    if num_targets % groups:
        raise ValueError(f"degrees has {num_targets} of the target; {policy.name} needs {groups} equal groups")
    return {Role.DRAFT: num_targets, **degrees, Role.TARGET: num_targets // groups}


def group_ranks(ranks: Mapping[Role, int], policy: Policy) -> Mapping[Role, int]:
    """Processes that divide each role's group; a co-located draft's are the target's."""
    if policy.layout is Layout.DISAGGREGATED:
        return ranks
    return dict.fromkeys(Role, ranks.get(Role.TARGET, 1))


def _run_request(
    env: simpy.Environment,
    parts: Sequence[RequestPart],
    programs: Callable[[Request], Mapping[Role, Program]],
    request: Request,
) -> tuple[Span, ...]:
    """Run the programs to their ends; every span in order of its start."""
    first = programs(request)
    for part in parts:
        again = first if part.device.group == 0 else programs(request)
        events = part.run(again[part.role])
        if isinstance(env, OneProcess):
            env.complete(events)
        else:
            env.process(events)
    env.run()
    blocked = [part.role for part in parts if not part.is_finished]
    if blocked:
        raise RuntimeError(f"deadlock: {' and '.join(blocked)} wait for a message that nobody sends")
    return tuple(sorted((span for part in parts for span in part.spans), key=lambda span: span.start_s))
