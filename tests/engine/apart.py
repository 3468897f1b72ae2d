"""A disaggregated policy on tables, by the engine's drivers in this thread: one for each device group, in any order."""

import random
from collections import deque

from swiftspec.engine.channel.zmq_channel import NO_PAYLOAD, Payload
from swiftspec.engine.driver.group_driver import GroupDriver
from swiftspec.engine.driver.request_part import RequestPart
from swiftspec.engine.model.sampling.chain_sampler import ChainSampler, ProposalPayload
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Message, Role
from swiftspec.scheduler.batching import BatchLimits
from tests.engine.tables import Pair
from tools.run_alone import raise_error

_Inbox = deque[tuple[Message, bytes]]


class _Peer:
    """One end of a channel that loses nothing."""

    def __init__(self, payload: Payload, inbox: _Inbox, outbox: _Inbox) -> None:
        self._payload, self._inbox, self._outbox = payload, inbox, outbox

    def send(self, message: Message) -> None:
        self._outbox.append((message, self._payload.outgoing(message)))

    def poll(self) -> Message | None:
        return self.take()

    def take(self) -> Message | None:
        if not self._inbox:
            return None
        message, payload = self._inbox.popleft()
        assert self._payload.takes(message, payload)
        return message


class _Nothing:
    """Inbox of a driver whose peers' messages are there at once."""

    def pump(self) -> None:
        pass

    def wait(self, until_s: float | None) -> None:
        pass


def generate_apart(
    pair: Pair, policy: Policy, request: Request, sampler: Sampler, *, rng: random.Random
) -> tuple[tuple[int, ...], int]:
    """Output, and the number of its commits. rng: which group takes its next step."""
    output: list[int] = []
    commits: list[int] = []

    def commit(tokens: tuple[int, ...]) -> None:
        output.extend(tokens)
        commits.append(len(tokens))

    channels: list[tuple[_Inbox, _Inbox]] = [(deque(), deque()) for _ in range(policy.target_groups)]
    models = {Role.TARGET: pair.target, Role.DRAFT: pair.draft}
    drivers = []
    roles = [(Role.TARGET, group) for group in range(policy.target_groups)] + [(Role.DRAFT, 0)]
    for role, group in roles:
        residual = ChainSampler(sampler, vocab_size=pair.target.vocab_size) if request.ratio_tested else None

        def payload(residual: ChainSampler | None = residual) -> Payload:
            beside = residual and ProposalPayload(residual)
            return Payload(beside.outgoing, beside.takes) if beside else NO_PAYLOAD

        mine = [channels[group]] if role is Role.TARGET else [(back, forth) for forth, back in channels]
        held = {role: models[role].copy()}
        part = RequestPart(
            role=role,
            models=held,
            peers=[_Peer(payload(), inbox, outbox) for inbox, outbox in mine],
            commit=commit,
            sampler=sampler,
            residual=residual,
        )
        driver = GroupDriver(models=held, limits=BatchLimits(), inbox=_Nothing(), ended=raise_error)
        driver.add(0, policy.programs(request)[role], part, is_elastic=False)
        drivers.append(driver)
    while any(map(len, drivers)):
        driver = rng.choice([each for each in drivers if len(each)])
        driver.advance()
        if len(driver):
            driver.step()
    return tuple(output), len(commits)
