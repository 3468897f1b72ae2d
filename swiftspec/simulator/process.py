"""A request's part on a simulated device group: effects become latencies, and answers of an oracle.

Simplifications: a forward that starts while a peer is not idle is priced with a busy peer for its whole length; and
messages arrive one hop after they were sent, in order, whatever the receiver is doing.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

import simpy

from swiftspec.policies.effects import (
    Choose,
    Clock,
    Commit,
    DraftForward,
    Effect,
    Forward,
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
    TargetForward,
)
from swiftspec.simulator.latency import ForwardTimes, LatencySampler
from swiftspec.simulator.oracle import TraceOracle
from swiftspec.timing.steps import hop_rows
from swiftspec.timing.timeline import Phase, Span

Events = Generator[simpy.Event, Any, Any]
_ON_HOST = (KeepKV, Send, Commit, Clock)


class OneProcess(simpy.Environment):
    """An environment with one process: nothing else can happen while it waits, so that its waits are added up."""

    def timeout(self, delay: float = 0.0, _: object = None) -> Any:
        return delay

    def complete(self, waits_s: Iterable[Any]) -> None:
        for wait_s in waits_s:
            self._now += wait_s


class Link:
    """Channel from one process to another. `on_arrival` is called when a message is there, received or not."""

    def __init__(self, env: simpy.Environment, on_arrival: Callable[[], None]) -> None:
        self._env = env
        self._on_arrival = on_arrival
        self._arrived: deque[Message] = deque()
        self._coming: deque[Message] = deque()
        self._arrival_s = 0.0  # of the last of those
        self._awaited: simpy.Event | None = None  # by a receive that found nothing

    def send(self, message: Message, *, hop_s: float) -> None:
        """Send; the message arrives one hop from now, but never before an earlier one."""
        self._coming.append(message)
        self._arrival_s = max(self._arrival_s, self._env.now + hop_s)
        arrival = self._env.timeout(self._arrival_s - self._env.now)
        arrival.callbacks.append(self._deliver)

    def receive(self, within_s: float | None = None) -> Generator[simpy.Event, Any, Message | None]:
        """The next message, as soon as it arrives; None if none comes in time."""
        if not self._arrived:
            self._awaited = self._env.event()
            yield self._awaited if within_s is None else self._awaited | self._env.timeout(within_s)
            self._awaited = None
        return self._arrived.popleft() if self._arrived else None

    def poll(self) -> Message | None:
        """The next message, if it has arrived."""
        return self._arrived.popleft() if self._arrived else None

    def _deliver(self, _: simpy.Event) -> None:
        # The oldest message, whichever arrival triggered this: rounding may swap two that are due at once.
        self._arrived.append(self._coming.popleft())
        self._on_arrival()
        if self._awaited is not None:
            self._awaited.succeed()
            self._awaited = None  # no receive waits for the next message until the receiver runs


class DeviceGroup:
    """Devices that compute one forward at a time.

    is_idle: whether its programs all wait for messages. num_arrived: messages that have arrived so far, whether
    received yet or not. awaited: what a wait for anything to happen waits for.
    """

    def __init__(self, env: simpy.Environment, role: Role, *, meter: LatencySampler, group: int = 0) -> None:
        self.env = env
        self.role = role
        self.group = group
        self.meter = meter
        self.is_idle = False
        self.num_arrived = 0
        self.awaited: simpy.Event | None = None
        self.peers: list[DeviceGroup] = []
        self._times = ForwardTimes(meter, now_s=env.now)

    @property
    def stream(self) -> tuple[int, ...]:
        """Seed that sets a request's random numbers on this group apart from those on the others."""
        return (0, self.group + 1) if self.peers and self.role is Role.TARGET else (0,)

    def note_arrival(self) -> None:
        """Count a message, for whichever request."""
        self.num_arrived += 1
        self.notify()

    def notify(self) -> None:
        """End the wait for something to happen, if there is one."""
        if self.awaited is not None:
            self.awaited.succeed()
            self.awaited = None

    def compute(self, phase: Phase, model: Role, *, rows: int, context: int, sequences: int = 1) -> Events:
        """One forward, over the rows of some sequences. context: slots that a row attends to, in the mean."""
        env, meter = self.env, self.meter
        peer_busy = any(not peer.is_idle for peer in self.peers)
        num_arrived = self.num_arrived
        yield env.timeout(
            self._times.begin(
                phase, model, rows=rows, context=context, sequences=sequences, peer_busy=peer_busy, now_s=env.now
            )
        )
        # The device receives messages meanwhile, and computes that much longer.
        while self.num_arrived > num_arrived:
            delay_s = sum(meter.host(Phase.ARRIVE) for _ in range(self.num_arrived - num_arrived))
            num_arrived = self.num_arrived
            if delay_s:
                yield env.timeout(delay_s)
        self._times.end(phase, model, rows=rows, now_s=env.now)


class RequestPart:
    """One request on one device group: its answers, its ends of the channels, and its spans.

    is_finished: whether its program has ended.
    """

    def __init__(self, device: DeviceGroup, *, oracle: TraceOracle) -> None:
        self.env = device.env
        self.role = device.role
        self.device = device
        self.oracle = oracle
        self.spans: list[Span] = []
        self.is_finished = False
        self._from: list[Link] = []
        self._to: list[Link] = []
        self._halfway: tuple[Row, ...] = ()  # rows of an exit until its finish
        self._meter = device.meter

    def connect(self, peer: "RequestPart") -> None:
        """Create a channel between this part and another, as the next peer of each."""
        here, there = Link(self.env, self.device.note_arrival), Link(self.env, peer.device.note_arrival)
        for part, incoming, outgoing in ((self, here, there), (peer, there, here)):
            part._from.append(incoming)
            part._to.append(outgoing)

    def run(self, program: Program) -> Events:
        """The SimPy process of a program that has its device group to itself: every effect, to its end."""
        answer: Any = None
        while True:
            try:
                effect = program.send(answer)
            except StopIteration:
                break
            if isinstance(effect, Poll):  # an asynchronous draft looks for its verdict before every forward
                answer = self.complete(effect, self.env.now)
            elif isinstance(effect, _ON_HOST):
                start_s = self.env.now
                if host_s := self.begin(effect):
                    yield self.env.timeout(host_s)
                answer = self.complete(effect, start_s)
            elif isinstance(effect, Receive):
                answer = yield from self._receive(effect)
            else:
                assert not isinstance(effect, Choose), "no simulated request is ratio-tested"
                answer = yield from self._forward(effect)
        self.is_finished = self.device.is_idle = True

    def begin(self, effect: Effect) -> float:
        """Begin an effect that neither computes nor waits; the host's seconds until it is to `complete`."""
        if isinstance(effect, KeepKV):
            self.oracle.keep(effect.role, effect.slots, effect.num_verified)
            return self._meter.host(Phase.COMPACT, len(effect.slots))
        if isinstance(effect, Send):
            return self._meter.host(Phase.SEND, 0)
        if isinstance(effect, Commit):
            return self._meter.host(Phase.COMMIT, 0)
        return 0.0

    def complete(self, effect: Effect, start_s: float) -> Any:
        if isinstance(effect, Poll):
            message = self.poll(effect.peer)
            if message is not None:
                self.note(Phase.WAIT, self.role, start_s)
            return message
        if isinstance(effect, KeepKV):
            self.note(Phase.COMPACT, effect.role, start_s, rows=len(effect.slots))
        elif isinstance(effect, Send):
            self.note(Phase.SEND, self.role, start_s)
            # Until the peer can receive the message, and the features beside it.
            hop_s = self._meter.host(Phase.WAIT, hop_rows(self.oracle.num_features(effect.message)))
            self._to[effect.peer].send(effect.message, hop_s=hop_s)
        elif isinstance(effect, Commit):
            self.note(Phase.COMMIT, self.role, start_s, tokens=len(effect.tokens))
        elif isinstance(effect, Clock):
            return float(self.env.now)
        return None

    def answer(self, effect: Forward) -> Any:
        if isinstance(effect, DraftForward):
            return self.oracle.draft(effect.rows, effect.num_candidates, fuzzy=effect.fuzzy)
        if isinstance(effect, TargetForward):
            return self.oracle.target(effect.rows)
        if isinstance(effect, Prefill):
            return self.oracle.prefill(effect.role, effect.tokens)
        if isinstance(effect, TargetExit):
            self._halfway = effect.rows
            return self.oracle.exit(effect.rows, effect.num_candidates)
        return self.oracle.target(self._halfway)

    def form(self, effect: Forward) -> tuple[Phase, Role, int]:
        if isinstance(effect, DraftForward):
            return Phase.FUZZY if effect.fuzzy else Phase.EXPAND, Role.DRAFT, len(effect.rows)
        if isinstance(effect, TargetForward):
            return Phase.VERIFY, Role.TARGET, len(effect.rows)
        if isinstance(effect, Prefill):
            return Phase.PREFILL, effect.role, len(effect.tokens)
        if isinstance(effect, TargetExit):
            return Phase.EXIT, Role.TARGET, len(effect.rows)
        return Phase.FINISH, Role.TARGET, len(self._halfway)

    def poll(self, peer: int) -> Message | None:
        """The next message, if it has arrived."""
        return self._heard(self._from[peer].poll())

    def _heard(self, message: Message | None) -> Message | None:
        if message is not None and self.role is Role.DRAFT:
            self.oracle.hear(message)
        return message

    def note(self, phase: Phase, model: Role, start_s: float, *, rows: int = 0, tokens: int = 0) -> None:
        """Add a span that ends now."""
        self.spans.append(Span(self.role, phase, model, rows, tokens, start_s, self.env.now, self.device.group))

    def _forward(self, effect: Forward) -> Events:
        phase, model, rows = self.form(effect)
        host_s = self._meter.host(phase, rows)
        if host_s:
            yield self.env.timeout(host_s)
        start_s = self.env.now
        yield from self.device.compute(phase, model, rows=rows, context=self.oracle.context(model))
        self.note(phase, model, start_s, rows=rows)
        return self.answer(effect)

    def _receive(self, effect: Receive) -> Generator[simpy.Event, Any, Message | None]:
        start_s = self.env.now
        self.device.is_idle = True
        message = yield from self._from[effect.peer].receive(effect.within_s)
        self.device.is_idle = False
        self.note(Phase.WAIT, self.role, start_s)
        return self._heard(message)
