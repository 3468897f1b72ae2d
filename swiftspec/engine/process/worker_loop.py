"""The loop of a TP group's leader: commands come in, programs of requests run, reports go out."""

import gc
import math
import os
import select
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection

import zmq

from swiftspec.engine.channel.zmq_channel import NO_PAYLOAD, Channel, Payload, beside_chains
from swiftspec.engine.driver.group_driver import GroupDriver
from swiftspec.engine.driver.request_part import RequestPart
from swiftspec.engine.model.drafts.features import FeatureReceiver, Features, FeatureSender, FeatureStore
from swiftspec.engine.model.forward_batch import Model
from swiftspec.engine.model.sampling.chain_sampler import ChainSampler, ProposalPayload
from swiftspec.engine.model.sampling.rejection_sampler import RejectionSampler
from swiftspec.engine.process.protocol import (
    Cancel,
    CommitReport,
    EndReport,
    Fault,
    Generate,
    Report,
    ScoreReport,
    Setup,
)
from swiftspec.files.reading import brief
from swiftspec.policies import Layout
from swiftspec.policies.base import sends_features
from swiftspec.policies.effects import Program, Role
from swiftspec.policies.lookup.known_text import SharedOutputs
from swiftspec.policies.recovery import Recoverable, recoverable
from swiftspec.timing.timeline import Span

_PATIENCE_PER_REQUEST = 0.25  # a round of many takes longer than one alone, but not as many times as long


class WorkerLoop:
    """Runs a role's programs for as long as the launcher wants. models: with `setup.max_running` sequences each.

    features: of each sequence, if they go beside verdicts: the target's, or the store of the draft's process.
    """

    def __init__(
        self,
        connection: Connection,
        setup: Setup,
        models: Mapping[Role, Model],
        channels: Sequence[Channel],
        features: Sequence[Features] = (),
    ) -> None:
        self._connection = connection
        self._commands = select.poll()
        self._commands.register(connection.fileno(), select.POLLIN | select.POLLHUP)
        self._setup = setup
        self._models = models
        self._channels = channels
        self._features = features
        self._driver = GroupDriver(
            models=models,
            limits=setup.batch,
            inbox=self,
            ended=self._report_end,
            controller=setup.steering and setup.steering.controller(setup.batch.max_rows),
        )
        self._free = list(range(setup.max_running))  # sequences
        self._sequence_of: dict[int, int] = {}  # of each request
        self._reports: list[Report] = []
        self._reported_s = 0.0  # when reports were sent last
        self._is_urgent = False  # what is to be reported
        self._has_committed: set[int] = set()  # requests that have reported tokens
        self._recoveries: dict[int, Recoverable] = {}
        self._earlier = SharedOutputs()

    def run(self) -> None:
        """Serve. EOFError when the launcher hangs up."""
        while True:
            while not len(self._driver) or self._commands.poll(0):
                self._obey(self._connection.recv())
            self._driver.advance()
            self._send_reports()
            self._driver.step()
            is_idle = not len(self._driver)
            self._driver.collect_garbage(is_idle=is_idle)
            if is_idle and self._earlier:
                gc.freeze()  # trees without cycles, which every later collection would walk through

    def _obey(self, command: Generate | Cancel) -> None:
        if isinstance(command, Cancel):
            self._driver.remove(command.number)
            self._send_reports()
            return
        self._sequence_of[command.number] = self._free.pop()
        try:
            self._begin(command)
        except Exception as error:  # noqa: BLE001 - what cannot be begun is the end of this request alone
            self._report_end(command.number, [], 0, error)

    def _begin(self, command: Generate) -> None:
        number, sequence = command.number, self._sequence_of[command.number]
        residual = self._residual(command)
        part = RequestPart(
            role=self._setup.role,
            # That of a program, as timelines have it: a replica's only group is its first.
            group=self._setup.group if command.policy.target_groups > 1 else 0,
            sequence=sequence,
            tenant=command.tenant,
            models=self._models,
            peers=[
                self._channels[peer].open(number, self._payload(command, sequence, residual)) for peer in command.peers
            ],
            commit=partial(self._report_commit, number),
            sampler=command.sampler,
            residual=residual,
            prompt=command.request.prompt,
            score=lambda *found: self._reports.append(ScoreReport(number, *found)),
        )
        program = self._program(command, is_ratio_tested=residual is not None)
        self._driver.add(number, program, part, is_elastic=command.policy.elastic, tpot_s=command.tpot_s)

    def _residual(self, command: Generate) -> RejectionSampler | ChainSampler | None:
        """What decides on draft tokens by both models' probabilities, if the request asks for it."""
        if not command.sampler.needs_draft_probabilities:
            return None
        if command.policy.layout is not Layout.DISAGGREGATED:
            return RejectionSampler(command.sampler)
        if command.policy.keeps_tree:
            return None
        return ChainSampler(command.sampler, vocab_size=self._setup.vocab_size)

    def _payload(self, command: Generate, sequence: int, residual: RejectionSampler | ChainSampler | None) -> Payload:
        payload = NO_PAYLOAD
        if sends_features(command.policy):
            features = self._features[sequence]
            if isinstance(features, FeatureStore):
                receiver = FeatureReceiver(features, num_prompt_tokens=len(command.request.prompt) - 1)
                payload = Payload(takes=receiver.takes)
            else:
                payload = Payload(outgoing=FeatureSender(features).outgoing)
        if not isinstance(residual, ChainSampler):
            return payload
        proposals = ProposalPayload(residual)
        return beside_chains(Payload(proposals.outgoing, proposals.takes), payload)

    def _program(self, command: Generate, *, is_ratio_tested: bool) -> Program:
        """The role's program, inside of its recovery if it has a peer to lose."""
        request = replace(command.request, ratio_tested=is_ratio_tested)
        # Residual sampling is exact only if what is verified does not depend on the noise that decides. The output of
        # an earlier request with the same seed and prompt does.
        if not command.sampler.needs_draft_probabilities:
            request = replace(request, earlier=self._earlier.known_to(command.policy, command.tenant))
        if command.policy.layout is not Layout.DISAGGREGATED:
            steering = self._setup.steering
            programs = steering.programs(command.policy, request) if steering else command.policy.programs(request)
            return programs[self._setup.role]
        recovery = self._recoveries[command.number] = recoverable(
            command.policy,
            request,
            self._setup.role,
            fallback=command.fallback,
            patience_s=lambda: command.patience_s * (1.0 + _PATIENCE_PER_REQUEST * (len(self._driver) - 1)),
            alone=command.alone,
        )
        return recovery.run()

    def _report_commit(self, number: int, tokens: tuple[int, ...]) -> None:
        self._reports.append(CommitReport(number, tokens))
        if number not in self._has_committed:
            self._has_committed.add(number)
            self._is_urgent = True

    def _report_end(self, number: int, spans: list[Span], rows_asked: int, error: Exception | None) -> None:
        for channel in self._channels:
            channel.close(number)
        self._free.append(self._sequence_of.pop(number))
        recovery = self._recoveries.pop(number, None)
        losses, alone_s = (recovery.num_losses, recovery.alone_s) if recovery else (0, 0.0)
        fault = None
        if error is not None:  # its sentence is short, since it may quote what it is about
            fault = Fault(f"{type(error).__name__}: {brief(error)}", "".join(traceback.format_exception(error)))
        self._reports.append(
            EndReport(number, spans, losses=losses, alone_s=alone_s, rows_asked=rows_asked, fault=fault)
        )
        self._has_committed.discard(number)
        self._is_urgent = True

    def _send_reports(self) -> None:
        """Send what the programs have said, if it is time: the launcher wakes up, and may share the roles' cores."""
        if not self._reports or (not self._is_urgent and time.perf_counter() < self._reports_due_s):
            return
        self._connection.send(self._reports)
        self._is_urgent = False
        self._reported_s = sent_s = time.perf_counter()
        for report in self._reports:
            if isinstance(report, CommitReport):
                self._driver.note_delivery(report.number, sent_s)
        self._reports.clear()

    @property
    def _reports_due_s(self) -> float:
        return self._reported_s + self._setup.report_every_s

    def pump(self) -> None:
        for channel in self._channels:
            channel.pump()

    def wait(self, until_s: float | None) -> None:
        """Wait for a message, a command or a time, and no longer than until reports are due."""
        if self._reports:
            until_s = min(self._reports_due_s, math.inf if until_s is None else until_s)
        left_s = None if until_s is None else until_s - time.perf_counter()
        if left_s is not None and left_s <= 0:
            return
        poller = zmq.Poller()
        poller.register(self._connection.fileno(), zmq.POLLIN)
        for channel in self._channels:
            poller.register(channel.socket, zmq.POLLIN)
        if left_s is None:
            poller.poll()
        elif not poller.poll(int(1e3 * left_s)):  # 0 below a millisecond, which ZeroMQ cannot wait for
            os.sched_yield()
