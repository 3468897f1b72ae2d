"""The simulator's driver: role programs are SimPy processes, effects latencies. Emits the engine's Timeline; no torch.

Where the engine computes, this driver waits for the drawn latency and asks the oracle. Simplifications: a forward that
starts while the peer role is not blocked in a receive is priced with a busy peer for its whole length; and messages
arrive one hop after they were sent, in order, whatever the receiver is doing.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from swiftspec.artifacts.latency import Provenance
from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.steps import COOLING_S, Latencies
from swiftspec.artifacts.timeline import Phase, Span, Timeline
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.policies import Layout, Policy, Request
from swiftspec.policies.effects import (
    Candidates,
    Clock,
    Commit,
    DraftForward,
    Effect,
    KeepKV,
    Message,
    Poll,
    Prefill,
    Program,
    Receive,
    Role,
    Row,
    Send,
    TargetExit,
    TargetFinish,
    TargetForward,
)
from swiftspec.simulator.channel import Link
from swiftspec.simulator.forward_errors import EXACT, ForwardErrors
from swiftspec.simulator.latency import LatencySampler, LatencyTable
from swiftspec.simulator.oracle import CandidatePool, TraceOracle

__all__ = ["Simulation", "Simulator", "simulate"]

_Events = Generator[simpy.Event, Any, Any]


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

    Parameters
    ----------
    degrees : mapping
        Devices of each role's group; a co-located policy's draft runs on the target's.
    prompt_indices : sequence of int, optional
        Indices of the trace's prompts, in this order; all by default.
    seed : int
        The same seed, policy and files give the same timelines. A prompt's draws do not depend on the other prompts.
    max_new_tokens : int, optional
        Output tokens at most; never more than were traced.
    ranks : mapping, optional
        Processes that divide each role's group, or each target group, as in `StepPoint`; one if not given. A co-located
        policy's draft has the target's.
    errors : ForwardErrors, optional
        Known errors of forwards. If there are any, every prompt is simulated twice: with forwards scaled by its draw,
        and, after all prompts, by the opposite draw.

    Raises
    ------
    ValueError
        If a group is missing, a prompt does not exist, or the profile has no steps for a degree.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Timelines, the seconds charged in them by provenance (both roles together), and when the last process ended."""

    timelines: tuple[Timeline, ...]
    seconds: Mapping[Provenance, float]
    end_s: float


class Simulator:
    """Simulates many policies on one profile and trace; prices and candidates are looked up once.

    Parameters
    ----------
    profile : Profile or Latencies
    trace : AcceptanceTrace
    errors : ForwardErrors
        Known errors of forwards, of which each prompt has its own draw; exact by default.
    oracle : callable
        Factory of the object that answers a process's forwards. Tests use a real draft, on the same simulated clock.
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
        self._prompts = trace.prompts

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
        """As `simulate`, every prompt once; mirrored: with the opposite draws of the forwards' errors."""
        meter = LatencySampler(self._prices, degrees=_complete(degrees, policy), ranks=_of_both(ranks or {}, policy))
        clock_s = start_s
        timelines: list[Timeline] = []
        for index in range(len(self._prompts)) if prompt_indices is None else prompt_indices:
            if not 0 <= index < len(self._prompts):
                raise ValueError(f"prompt_indices has {index}; expected one of the trace's {len(self._prompts)}")
            meter.seed(seed, index, scales=self.errors.scales(seed=seed, index=index, mirrored=mirrored))
            env = simpy.Environment(initial_time=clock_s)
            processes = self._processes(env, policy, meter, seed=seed, index=index)
            request = processes[0].oracle.request(max_new_tokens)
            spans = _run_request(env, processes, policy, request)
            timelines.append(Timeline(request=self._prompts[index].prompt_id, start_s=clock_s, spans=spans))
            clock_s = float(env.now)
        return Simulation(timelines=tuple(timelines), seconds=meter.seconds, end_s=clock_s)

    def _processes(
        self, env: simpy.Environment, policy: Policy, meter: LatencySampler, *, seed: int, index: int
    ) -> list["_Process"]:
        """A process per device group, the target's first; each has its own oracle, since each has its own caches."""

        def start(role: Role, *stream: int, group: int = 0) -> _Process:
            rng = np.random.default_rng([seed, index, *stream])
            oracle = self._oracle(self._pool, self._prompts[index], prompt_index=index, rng=rng)
            return _Process(env, role, oracle=oracle, meter=meter, group=group)

        if policy.layout is not Layout.DISAGGREGATED:
            return [start(Role.TARGET, 0)]
        draft = start(Role.DRAFT, 0)
        targets = [start(Role.TARGET, 0, group + 1, group=group) for group in range(policy.target_groups)]
        for target in targets:
            target.connect(draft)
        return [*targets, draft]


def _complete(degrees: Mapping[Role, int], policy: Policy) -> Mapping[Role, int]:
    needed = set(Role) if policy.layout is Layout.DISAGGREGATED else {Role.TARGET}
    if missing := sorted(needed - set(degrees)):
        raise ValueError(f"degrees has no {missing[0]}; {policy.name} is {policy.layout}")
    num_targets, groups = degrees[Role.TARGET], policy.target_groups
    if num_targets % groups:
        raise ValueError(f"degrees has {num_targets} of the target; {policy.name} needs {groups} equal groups")
    return {Role.DRAFT: num_targets, **degrees, Role.TARGET: num_targets // groups}


def _of_both(ranks: Mapping[Role, int], policy: Policy) -> Mapping[Role, int]:
    if policy.layout is Layout.DISAGGREGATED:
        return ranks
    return dict.fromkeys(Role, ranks.get(Role.TARGET, 1))


def _run_request(
    env: simpy.Environment, processes: Sequence["_Process"], policy: Policy, request: Request
) -> tuple[Span, ...]:
    """Run the programs to their ends; every span in order of its start."""
    programs = policy.programs(request)
    for process in processes:
        again = programs if process.group == 0 else policy.programs(request)
        env.process(process.run(again[process.role]))
    env.run()
    blocked = [process.role for process in processes if not process.finished]
    if blocked:
        raise RuntimeError(f"deadlock: {' and '.join(blocked)} wait for a message that nobody sends")
    return tuple(sorted((span for process in processes for span in process.spans), key=lambda span: span.start_s))


class _Process:
    """One role program and its ends of the channels."""

    def __init__(
        self, env: simpy.Environment, role: Role, *, oracle: TraceOracle, meter: LatencySampler, group: int = 0
    ) -> None:
        self.env = env
        self.role = role
        self.group = group
        self.oracle = oracle
        self.spans: list[Span] = []
        self.blocked = False
        self.finished = False
        self._peers: list[_Process] = []
        self._from: list[Link] = []
        self._to: list[Link] = []
        self._halfway: tuple[Row, ...] = ()  # rows of an exit until its finish
        self._computed_s: dict[Role, float] = {}  # end of each model's last forward
        self._meter = meter
        self._perform: Mapping[type[Effect], Callable[[Any], _Events]] = {
            Prefill: self._prefill,
            DraftForward: self._draft_forward,
            TargetForward: self._target_forward,
            TargetExit: self._target_exit,
            TargetFinish: self._target_finish,
            KeepKV: self._keep_kv,
            Send: self._send,
            Receive: self._receive,
            Poll: self._poll,
            Clock: self._clock,
            Commit: self._commit,
        }

    def connect(self, peer: "_Process") -> None:
        """Create a channel between this process and another, as the next peer of each."""
        here, there = Link(self.env), Link(self.env)
        for process, other, incoming, outgoing in ((self, peer, here, there), (peer, self, there, here)):
            process._peers.append(other)
            process._from.append(incoming)
            process._to.append(outgoing)

    def run(self, program: Program) -> _Events:
        """The SimPy process: every effect that the program yields, to its end."""
        perform = self._perform
        answer: Any = None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                break
            answer = yield from perform[type(effect)](effect)
        self.finished = self.blocked = True

    def _forward(self, phase: Phase, model: Role, rows: int) -> _Events:
        env, meter = self.env, self._meter
        thinking_s = meter.host(phase, rows)
        if thinking_s:
            yield env.timeout(thinking_s)
        peer_busy = any(not peer.blocked for peer in self._peers)
        start_s = env.now
        cold = start_s - self._computed_s.get(model, start_s) > COOLING_S
        context = self.oracle.context(model)
        num_arrived = self._num_arrived()
        yield env.timeout(meter.forward(model, phase, peer_busy=peer_busy, cold=cold, rows=rows, context=context))
        # The device receives messages meanwhile, and computes that much longer.
        while (arrived := self._num_arrived()) > num_arrived:
            delay_s = sum(meter.host(Phase.ARRIVE) for _ in range(arrived - num_arrived))
            num_arrived = arrived
            if delay_s:
                yield env.timeout(delay_s)
        self._computed_s[model] = env.now
        self._note(phase, model, start_s, rows=rows)

    def _num_arrived(self) -> int:
        return sum(link.num_arrived for link in self._from)

    def _prefill(self, effect: Prefill) -> Generator[simpy.Event, Any, int | None]:
        yield from self._forward(Phase.PREFILL, effect.role, len(effect.tokens))
        return self.oracle.prefill(effect.role, effect.tokens)

    def _draft_forward(self, effect: DraftForward) -> Generator[simpy.Event, Any, tuple[Candidates, ...]]:
        yield from self._forward(Phase.FUZZY if effect.fuzzy else Phase.EXPAND, Role.DRAFT, len(effect.rows))
        return self.oracle.draft(effect.rows, effect.num_candidates, fuzzy=effect.fuzzy)

    def _target_forward(self, effect: TargetForward) -> Generator[simpy.Event, Any, tuple[int, ...]]:
        yield from self._forward(Phase.VERIFY, Role.TARGET, len(effect.rows))
        return self.oracle.target(effect.rows)

    def _target_exit(self, effect: TargetExit) -> Generator[simpy.Event, Any, tuple[Candidates, ...]]:
        yield from self._forward(Phase.EXIT, Role.TARGET, len(effect.rows))
        self._halfway = effect.rows
        return self.oracle.exit(effect.rows, effect.num_candidates)

    def _target_finish(self, _: TargetFinish) -> Generator[simpy.Event, Any, tuple[int, ...]]:
        yield from self._forward(Phase.FINISH, Role.TARGET, len(self._halfway))
        return self.oracle.target(self._halfway)

    def _keep_kv(self, effect: KeepKV) -> _Events:
        self.oracle.keep(effect.role, effect.slots, effect.num_verified)
        yield from self._host(Phase.COMPACT, effect.role, rows=len(effect.slots))

    def _commit(self, effect: Commit) -> _Events:
        yield from self._host(Phase.COMMIT, self.role, tokens=len(effect.tokens))

    def _send(self, effect: Send) -> _Events:
        yield from self._host(Phase.SEND, self.role)
        self._to[effect.peer].send(effect.message, hop_s=self._meter.hop())

    def _receive(self, effect: Receive) -> Generator[simpy.Event, Any, Message | None]:
        start_s = self.env.now
        self.blocked = True
        message = yield from self._from[effect.peer].receive(effect.within_s)
        self.blocked = False
        self._note(Phase.WAIT, self.role, start_s)
        return message

    def _poll(self, effect: Poll) -> Generator[simpy.Event, Any, Message | None]:
        yield from ()
        message = self._from[effect.peer].poll()
        if message is not None:
            self._note(Phase.WAIT, self.role, self.env.now)
        return message

    def _clock(self, _: Clock) -> Generator[simpy.Event, Any, float]:
        yield from ()
        return float(self.env.now)

    def _host(self, phase: Phase, model: Role, *, rows: int = 0, tokens: int = 0) -> _Events:
        start_s = self.env.now
        host_s = self._meter.host(phase, rows)
        if host_s:
            yield self.env.timeout(host_s)
        self._note(phase, model, start_s, rows=rows, tokens=tokens)

    def _note(self, phase: Phase, model: Role, start_s: float, *, rows: int = 0, tokens: int = 0) -> None:
        self.spans.append(Span(self.role, phase, model, rows, tokens, start_s, self.env.now, self.group))
