"""Processes of an engine on hosts, which whoever has machines starts: Ray, torchrun, a test."""

import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import cached_property

from swiftspec.devices.local import Device
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.cluster.connections import Listener, Spare
from swiftspec.engine.cluster.host import this_machine
from swiftspec.engine.process.clocks import LeastDelay, TimedMessage
from swiftspec.engine.process.pipes import PipeEnd
from swiftspec.engine.process.protocol import Command, EndReport, Report, Setup, WorkerSpec
from swiftspec.engine.process.worker_handle import Worker, WorkerLostError

KEY_BYTES = 32
_LOOK_EVERY_S = 0.05


class RemoteWorker(Worker):
    """A worker that is started as soon as `place` gives its slot a host, and its devices; reports have our times."""

    def __init__(self, setup: Setup, place: Callable[[], tuple[Spare, Setup] | None]) -> None:
        self.setup = setup
        self._place = place
        self._pipe: PipeEnd | None = None
        self._delay = LeastDelay()  # of its messages
        self._has_own_clock = False
        self._ahead_s = 0.0  # of its clock
        self._begin()

    def _begin(self) -> None:
        if (placed := self._place()) is not None:
            spare, self.setup = placed
            self.node, self._has_own_clock = spare.hello.node, spare.hello.machine != this_machine()
            self._pipe = PipeEnd(spare.connection)
            self._pipe.send(self.setup)

    def send(self, command: Command) -> None:
        if self._pipe is not None:
            self._pipe.send(TimedMessage(command, time.perf_counter(), None))

    def poll(self) -> bool:
        if self._pipe is None:
            self._begin()
        return self._pipe is not None and self._pipe.poll()

    def _take(self) -> Sequence[Report]:
        assert self._pipe is not None, "something came"
        try:
            timed: TimedMessage = self._pipe.take()
        except EOFError as error:
            why = f"the {self.setup.name} process on {self.node} ended, or its node has gone"
            raise WorkerLostError(why, was_started=True) from error
        self._delay.note(timed.sent_s, time.perf_counter())
        if self._has_own_clock and timed.delay_s is not None and self._delay.seconds is not None:
            # There and back took the same time, as far as is known: what differs is the clocks' difference, twice.
            self._ahead_s = (timed.delay_s - self._delay.seconds) / 2
        return list(map(self._in_our_time, timed.message))

    def _in_our_time(self, report: Report) -> Report:
        if not isinstance(report, EndReport):
            return report
        ahead_s = self._ahead_s
        spans = [span._replace(start_s=span.start_s - ahead_s, end_s=span.end_s - ahead_s) for span in report.spans]
        return replace(report, spans=spans)

    def fileno(self) -> int | None:
        return None if self._pipe is None else self._pipe.fileno()

    def hang_up(self) -> None:
        """Let it end; its host takes care of that, before it starts another."""
        self._place = lambda: None
        if self._pipe is not None:
            self._pipe.close()

    kill = close = hang_up

    @property
    def state(self) -> str:
        return "waiting for a node with room" if self._pipe is None else f"on {self.node}"

    @property
    def has_ended(self) -> bool:
        """True: nothing here waits for it."""
        return True


class ClusterExecutor(AbstractContextManager["ClusterExecutor"]):
    """An `Executor` whose processes run on hosts; a context manager, which lets the hosts end.

    slots: the engine's processes; hosts name them by their numbers. address: IPv4 address of this machine for hosts.
    key: of the run, which hosts have, too; a new one if not given. launcher: address and port for hosts.
    """

    def __init__(self, slots: Sequence[WorkerSpec], *, device: Device, address: str, key: bytes | None = None) -> None:
        self.key = key or secrets.token_bytes(KEY_BYTES)
        self._slots, self._device = slots, device
        self._curve = Curve.derived(secrets.token_bytes(KEY_BYTES))
        self._cores: dict[int, tuple[str, tuple[int, ...]]] = {}  # of the slots' latest workers: machine, its numbers
        self._stack = ExitStack()
        self._listener = self._stack.enter_context(Listener(address, self.key, num_slots=len(slots)))
        self.launcher = self._listener.address

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def await_hosts(self, within_s: float, *, check: Callable[[], None] = lambda: None) -> None:
        """Wait until every slot has a host. ValueError if one has none in time; `check` may raise earlier."""
        until_s = time.monotonic() + within_s
        while missing := [spec.name for slot, spec in enumerate(self._slots) if self._listener.look(slot) is None]:
            if time.monotonic() > until_s:
                raise ValueError(f"no host came within {within_s:g} s for the {' and the '.join(missing)}")
            check()
            time.sleep(_LOOK_EVERY_S)

    def num_devices(self, _device: Device, /) -> int:
        # All slots have devices of one kind.
        return max(max(spec.devices) for spec in self._slots) + 1

    def channel(self, target: WorkerSpec, draft: WorkerSpec, /) -> str:
        if draft.group:
            raise ValueError(f"the {draft.name} has no channel of its own; expected one draft on several machines")
        # The target's address: a draft may move to another node.
        spare = self._listener.look(self._slots.index(target))
        if spare is None:
            raise ValueError(f"the {target.name} has no host; expected one before the engine starts")
        return f"tcp://{spare.address}:{spare.hello.port}"

    def tp_group(self, name: str, /) -> str:
        address, port = self._store
        return f"tcp://{address}:{port}/tp-group-{name}"

    @cached_property
    def _store(self) -> tuple[str, int]:
        from swiftspec.engine.parallel.store import StoreServer  # loads torch, which few launchers need

        address, _ = self.launcher
        return address, self._stack.enter_context(StoreServer(address, 0, self._curve)).port

    def start(self, setup: Setup) -> Worker:
        slot = next(
            number
            for number, spec in enumerate(self._slots)
            if (spec.role, spec.group, spec.rank) == (setup.role, setup.group, setup.rank)
        )
        return RemoteWorker(setup, lambda: self._place(slot, setup))

    def _place(self, slot: int, setup: Setup) -> tuple[Spare, Setup] | None:
        if (spare := self._listener.take(slot)) is None:
            return None
        return spare, replace(setup, devices=self._devices_for(slot, setup, spare), curve=self._curve)

    def _devices_for(self, slot: int, setup: Setup, spare: Spare) -> tuple[int, ...]:
        """Devices for a slot's process, as its host numbers them: cores that no other slot has, if there are such."""
        hello, num_needed = spare.hello, len(setup.devices)
        self._cores.pop(slot, None)
        if len(hello.devices) < num_needed:
            spare.connection.close()
            raise ValueError(
                f"the host for the {setup.name} on {hello.node} has {len(hello.devices)} devices; expected {num_needed}"
            )
        if self._device == "cuda":
            return hello.devices[:num_needed]
        taken = [core for machine, cores in self._cores.values() if machine == hello.machine for core in cores]
        freest = sorted(range(len(hello.devices)), key=lambda number: taken.count(hello.devices[number]))
        chosen = tuple(sorted(freest[:num_needed]))
        self._cores[slot] = hello.machine, tuple(hello.devices[number] for number in chosen)
        return chosen
