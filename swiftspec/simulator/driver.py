"""The simulator's driver: role programs are SimPy processes, effects latencies. Emits the engine's Timeline; no torch.

Where the engine computes, this driver waits for the drawn latency and asks the oracle. What is simplified: a forward
that starts while the peer role is not blocked in a receive is priced as beside a busy peer for its whole length; and
messages arrive one hop after they were sent, in order, whatever the receiver is doing.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from swiftspec.acceptance import AcceptanceTrace
from swiftspec.policies import Layout, Policy
from swiftspec.policies.effects import (
    Candidates,
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
    Send,
    TargetForward,
)
from swiftspec.profile import Profile, Provenance
from swiftspec.simulator.latency import Meter, PriceList
from swiftspec.simulator.oracle import CandidatePool, TraceOracle
from swiftspec.timeline import Phase, Span, Timeline

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
) -> list[Timeline]:
    """Timelines of a policy on a trace's prompts, one after another on one clock that starts at 0.

    Parameters
    ----------
    degrees : mapping
        Devices of each role's group; a co-located policy's draft runs on the target's.
    prompt_indices : sequence of int, optional
        Which of the trace's prompts, in this order; all of them by default.
    seed : int
        The same seed, policy and files give the same timelines. A prompt's draws do not depend on the other prompts.
    max_new_tokens : int, optional
        Output tokens at most; never more than were traced.

    Raises
    ------
    ValueError
        If a group is missing, a prompt does not exist, or the profile has no steps for a degree.
    """
    simulation = Simulator(profile, trace).run(
        policy, degrees=degrees, prompt_indices=prompt_indices, seed=seed, max_new_tokens=max_new_tokens
    )
    return list(simulation.timelines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Timelines, and the seconds charged in them by provenance (both roles together)."""

    timelines: tuple[Timeline, ...]
    seconds: Mapping[Provenance, float]


class Simulator:
    """Simulates many policies on one profile and trace; prices and candidates are looked up once."""

    def __init__(self, profile: Profile, trace: AcceptanceTrace) -> None:
        self._prices = PriceList(profile)
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
    ) -> Simulation:
        """As `simulate`."""
        meter = Meter(self._prices, degrees=_complete(degrees, policy))
        clock_s = 0.0
        timelines: list[Timeline] = []
        for index in range(len(self._prompts)) if prompt_indices is None else prompt_indices:
            if not 0 <= index < len(self._prompts):
                raise ValueError(f"prompt_indices has {index}; expected one of the trace's {len(self._prompts)}")
            meter.seed(seed, index)
            rng = np.random.default_rng([seed, index, 0])
            oracle = TraceOracle(self._pool, self._prompts[index], prompt_index=index, rng=rng)
            env = simpy.Environment(initial_time=clock_s)
            programs = policy.programs(oracle.request(max_new_tokens))
            spans = _run_request(env, programs, oracle=oracle, meter=meter)
            timelines.append(Timeline(request=self._prompts[index].prompt_id, start_s=clock_s, spans=spans))
            clock_s = float(env.now)
        return Simulation(timelines=tuple(timelines), seconds=meter.seconds)


def _complete(degrees: Mapping[Role, int], policy: Policy) -> Mapping[Role, int]:
    needed = set(Role) if policy.layout is Layout.DISAGGREGATED else {Role.TARGET}
    if missing := sorted(needed - set(degrees)):
        raise ValueError(f"degrees has no {missing[0]}; {policy.name} is {policy.layout}")
    return {Role.DRAFT: degrees[Role.TARGET], **degrees}


def _run_request(
    env: simpy.Environment, programs: Mapping[Role, Program], *, oracle: TraceOracle, meter: Meter
) -> tuple[Span, ...]:
    """Run the programs to their ends; every span in order of its start."""
    processes = {role: _Process(env, role, oracle=oracle, meter=meter) for role in programs}
    if len(processes) == 2:
        target, draft = processes[Role.TARGET], processes[Role.DRAFT]
        target.peer, draft.peer = draft, target
    for role, program in programs.items():
        env.process(processes[role].run(program))
    env.run()
    blocked = [process.role for process in processes.values() if not process.finished]
    if blocked:
        raise RuntimeError(f"deadlock: {' and '.join(blocked)} wait for a message that nobody sends")
    spans = [span for process in processes.values() for span in process.spans]
    return tuple(sorted(spans, key=lambda span: span.start_s))


class _Process:
    """One role program and its end of the channel."""

    def __init__(self, env: simpy.Environment, role: Role, *, oracle: TraceOracle, meter: Meter) -> None:
        self.role = role
        self.peer: _Process | None = None
        self.spans: list[Span] = []
        self.blocked = False
        self.finished = False
        self._inbox: deque[Message] = deque()
        self._awaited: simpy.Event | None = None  # by a receive that found nothing
        self._coming: deque[Message] = deque()
        self._arrival_s = 0.0  # of the last of those
        self._env = env
        self._oracle = oracle
        self._meter = meter
        self._perform: Mapping[type[Effect], Callable[[Any], _Events]] = {
            Prefill: self._prefill,
            DraftForward: self._draft_forward,
            TargetForward: self._target_forward,
            KeepKV: self._keep_kv,
            Send: self._send,
            Receive: self._receive,
            Poll: self._poll,
            Commit: self._commit,
        }

    def run(self, program: Program) -> _Events:
        """The SimPy process: every effect the program yields, to its end."""
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
        env, meter = self._env, self._meter
        thinking_s = meter.host(phase, rows)
        if thinking_s:
            yield env.timeout(thinking_s)
        peer_busy = self.peer is not None and not self.peer.blocked
        start_s = env.now
        context = self._oracle.context(model)
        yield env.timeout(meter.forward(model, phase, peer_busy=peer_busy, rows=rows, context=context))
        self.spans.append(Span(self.role, phase, model, rows, 0, start_s, env.now))

    def _prefill(self, effect: Prefill) -> Generator[simpy.Event, Any, int | None]:
        yield from self._forward(Phase.PREFILL, effect.role, len(effect.tokens))
        return self._oracle.prefill(effect.role, effect.tokens)

    def _draft_forward(self, effect: DraftForward) -> Generator[simpy.Event, Any, tuple[Candidates, ...]]:
        yield from self._forward(Phase.EXPAND, Role.DRAFT, len(effect.rows))
        return self._oracle.draft(effect.rows, effect.num_candidates)

    def _target_forward(self, effect: TargetForward) -> Generator[simpy.Event, Any, tuple[int, ...]]:
        yield from self._forward(Phase.VERIFY, Role.TARGET, len(effect.rows))
        return self._oracle.target(effect.rows)

    def _keep_kv(self, effect: KeepKV) -> _Events:
        self._oracle.keep(effect.role, effect.slots, effect.num_verified)
        yield from self._host(Phase.COMPACT, effect.role, rows=len(effect.slots))

    def _commit(self, effect: Commit) -> _Events:
        yield from self._host(Phase.COMMIT, self.role, tokens=len(effect.tokens))

    def _send(self, effect: Send) -> _Events:
        yield from self._host(Phase.SEND, self.role)
        assert self.peer is not None, "a program that talks to a peer needs one"
        self.peer.expect(effect.message, hop_s=self._meter.hop())

    def _host(self, phase: Phase, model: Role, *, rows: int = 0, tokens: int = 0) -> _Events:
        start_s = self._env.now
        host_s = self._meter.host(phase, rows)
        if host_s:
            yield self._env.timeout(host_s)
        self.spans.append(Span(self.role, phase, model, rows, tokens, start_s, self._env.now))

    def expect(self, message: Message, *, hop_s: float) -> None:
        """A message sent now is here a hop later, though never before one sent earlier."""
        self._coming.append(message)
        self._arrival_s = max(self._arrival_s, self._env.now + hop_s)
        arrival = self._env.timeout(self._arrival_s - self._env.now)
        arrival.callbacks.append(self._deliver)

    def _deliver(self, _: simpy.Event) -> None:
        # The oldest message, whoever's arrival this is: rounding may swap two that are due at once.
        self._inbox.append(self._coming.popleft())
        if self._awaited is not None:
            self._awaited.succeed()
            self._awaited = None

    def _receive(self, effect: Receive) -> Generator[simpy.Event, Any, Message]:  # noqa: ARG002 - it carries nothing
        start_s = self._env.now
        if not self._inbox:
            self.blocked = True
            self._awaited = self._env.event()
            yield self._awaited
            self.blocked = False
        return self._take(start_s)

    def _poll(self, effect: Poll) -> Generator[simpy.Event, Any, Message | None]:  # noqa: ARG002 - it carries nothing
        yield from ()
        return self._take(self._env.now) if self._inbox else None

    def _take(self, start_s: float) -> Message:
        self.spans.append(Span(self.role, Phase.WAIT, self.role, 0, 0, start_s, self._env.now))
        return self._inbox.popleft()
