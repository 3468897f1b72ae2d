"""Agent: runs on every node except node 0. Starts workers on its devices and relays messages to and from node 0."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from swiftspec.artifacts.document import ModelRef
from swiftspec.devices.local import Device
from swiftspec.engine.channel.curve import Curve
from swiftspec.engine.cluster.admission import Admission
from swiftspec.engine.cluster.connection import LOOK_EVERY_S, SILENCE_S, Link
from swiftspec.engine.cluster.rendezvous import Meeting, NodeFacts
from swiftspec.engine.cluster.wire import Bye, Clock, Close, Frame, Message
from swiftspec.engine.process.fork_server_client import ForkServer, shared_fork_server
from swiftspec.engine.process.protocol import Cancel, Failed, Generate, Setup
from swiftspec.engine.process.worker_handle import ENDS_WITHIN_S, LocalWorker
from swiftspec.errors import EngineError

__all__ = ["serve"]


def serve(meeting: Meeting, own: NodeFacts, curve: Curve, *, models: Sequence[ModelRef], device: Device) -> None:
    """Run workers for node 0 on another node, until node 0 ends.

    Parameters
    ----------
    meeting, own, curve
        As of `lead`.
    models, device
        Limits of what node 0 may ask for: models and devices of this node's own plan.

    Raises
    ------
    ValueError
        If node 0 is not found in time, does not agree, or asks for something outside the plan.
    EngineError
        If node 0 goes without a farewell.
    """
    first, own = meeting.exchange(own)
    if own.rank > len(first.links):
        raise ValueError(f"node 0 announced {len(first.links)} links; expected one for each other node")
    admission = Admission(
        own=own, first=first, models=models, device=device, shares_machine=meeting.rendezvous.is_process
    )
    with shared_fork_server() as fork_server, Link(first.links[own.rank - 1], bind=False, curve=curve) as link:
        link.await_peer(meeting.rendezvous.timeout_s)
        agent = _Agent(link, admission, curve, fork_server)
        try:
            while agent.obey():
                agent.pass_on()
                agent.attend_ending()
                link.wait(agent.filenos, LOOK_EVERY_S)
        finally:
            agent.close()


@dataclass(frozen=True, slots=True)
class _Ending:
    """A worker that was told to end, and when."""

    worker: LocalWorker
    since_s: float


class _Agent:
    """Workers of this node, by the numbers that node 0 gave them."""

    def __init__(self, link: Link, admission: Admission, curve: Curve, fork_server: ForkServer) -> None:
        self._link, self._admission, self._curve = link, admission, curve
        self._fork_server = fork_server
        self._workers: dict[int, LocalWorker] = {}
        self._ending: list[_Ending] = []

    @property
    def filenos(self) -> list[int]:
        return [worker.fileno() for worker in self._workers.values()]

    def obey(self) -> bool:
        """Carry out node 0's commands; false after the command to end. EngineError if node 0 has gone."""
        is_up = self._link.is_up
        for number, message in self._link.frames():
            if isinstance(message, Bye):
                return False
            if isinstance(message, Clock):
                self._link.send(Frame(0, Clock(message.asked_s, time.perf_counter())))
            elif isinstance(message, Setup):
                self._start(number, message)
            elif number in self._workers:
                self._tell(number, message)
        if not is_up:
            raise EngineError(f"node 0 has gone: it ended, or was silent for {SILENCE_S:g} s")
        return True

    def _start(self, number: int, setup: Setup) -> None:
        self._admission.check(setup)
        most = self._admission.most_workers
        if number in self._workers or len(self._workers) >= most:
            raise ValueError(
                f"node 0 asks for process {number} in addition to {len(self._workers)}; expected a new one of {most}"
            )
        try:
            self._workers[number] = LocalWorker.start(replace(setup, curve=self._curve), self._fork_server)
        except (ValueError, EngineError) as error:  # not node 0's fault; the other workers continue
            self._tell_failure(number, error)

    def _tell(self, number: int, message: Message) -> None:
        if isinstance(message, Close):
            self._end(number)
        elif isinstance(message, Generate | Cancel):
            self._workers[number].send(message)

    def pass_on(self) -> None:
        """Relay the workers' reports; a failed worker is forgotten once node 0 knows the reason."""
        for number, worker in list(self._workers.items()):
            try:
                while worker.poll():
                    self._link.send(Frame(number, worker.receive()))
            except (ValueError, EngineError) as error:
                self._tell_failure(number, error)
                self._end(number)

    def _end(self, number: int) -> None:
        """Let a worker end, without waiting: node 0 and the other workers continue meanwhile."""
        worker = self._workers.pop(number)
        worker.hang_up()
        self._ending.append(_Ending(worker, time.monotonic()))

    def attend_ending(self) -> None:
        """Forget workers that have ended, and kill those that do not end by themselves."""
        now_s = time.monotonic()
        self._ending = [ending for ending in self._ending if not ending.worker.has_ended]
        for ending in self._ending:
            if now_s - ending.since_s > ENDS_WITHIN_S:
                ending.worker.kill()

    def _tell_failure(self, number: int, error: Exception) -> None:
        self._link.send(Frame(number, Failed(str(error), isinstance(error, ValueError))))

    def close(self) -> None:
        """End every worker."""
        with ExitStack() as stack:
            for worker in (*self._workers.values(), *(ending.worker for ending in self._ending)):
                stack.callback(worker.close)
                worker.hang_up()
