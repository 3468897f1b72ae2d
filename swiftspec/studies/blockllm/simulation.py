"""Requests of tenants in simulated time: each token passes its tenant's chain of blocks."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import simpy

from swiftspec.simulator.random_streams import uniforms
from swiftspec.studies.blockllm.deployment import Block, Deployment, Surrogate
from swiftspec.studies.blockllm.queueing import Cache, Item, Place, Queues, best_place
from swiftspec.studies.blockllm.requests import BlockRun, GroupUse, ServedTenant, TenantRequest

_Events = Generator[simpy.Event, Any, str]  # ends with the group that computed last


def simulate_blocks(
    deployment: Deployment,
    requests: Sequence[TenantRequest],
    *,
    returning_first: bool = True,
    stays: bool = False,
    seed: int = 0,
) -> BlockRun:
    """Serve all requests, and wait for the last one.

    Parameters
    ----------
    deployment : Deployment
    requests : sequence of TenantRequest
        In any order.
    returning_first : bool
        A request whose next token comes back to its first block goes before new ones, at every block.
    stays : bool
        A request always goes where its KV is, instead of where its next step ends first.
    seed : int
        Of the surrogates' hits and misses.

    Raises
    ------
    ValueError
        If a request is of an unknown tenant, or its KV is on a group that does not hold its blocks.
    """
    env = simpy.Environment()
    simulation = _Simulation(env, deployment, returning_first=returning_first, stays=stays, seed=seed)
    served = [ServedTenant(request=request) for request in sorted(requests, key=lambda each: each.arrival_s)]
    for number, each in enumerate(served):
        _check(each.request, deployment)
        env.process(simulation.serve(number, each))
    env.run()
    return BlockRun(
        served=tuple(served),
        groups={name: group.use for name, group in simulation.groups.items()},
        choices=dict(simulation.choices),
        end_s=max((each.ended_s for each in served), default=0.0),
    )


def _check(request: TenantRequest, deployment: Deployment) -> None:
    if request.tenant not in deployment.chains:
        known = ", ".join(deployment.chains)
        raise ValueError(f"a request is of tenant {request.tenant}; expected one of {known}")
    if request.cached_tokens:
        held = deployment.groups.get(request.cached_at, ())
        if missing := [name for name in deployment.chains[request.tenant] if name not in held]:
            raise ValueError(f"cached_at is {request.cached_at}, which does not hold {missing[0]}")


@dataclass(slots=True)
class _Lineage:
    """What depends on a surrogate's output, until that turns out to be wrong."""

    is_void: bool = False
    has_output: bool = False
    withdraw: list[Callable[[], None]] = field(default_factory=list)
    children: list["_Lineage"] = field(default_factory=list)

    def child(self) -> "_Lineage":
        self.children.append(made := _Lineage())
        return made

    def end(self) -> None:
        """Leave the queues; steps that have begun are computed in vain."""
        self.is_void = True
        for withdraw in self.withdraw:
            withdraw()
        for child in self.children:
            child.end()


@dataclass(slots=True)
class _State:
    """A request under way: where its KV of each block is, of how many tokens, and its random numbers."""

    served: ServedTenant
    chain: tuple[str, ...]
    homes: dict[str, str]
    context: int
    draw: Callable[[], float]  # from [0, 1)
    is_returning: bool = False


class _Group:
    """Device group: one step after another."""

    def __init__(self, env: simpy.Environment, blocks: dict[str, Block], *, returning_first: bool) -> None:
        self.queues = Queues(blocks, returning_first=returning_first)
        self.use = GroupUse()
        self.link_free_s = 0.0  # when the KV that it sends has left
        self._env, self._blocks = env, blocks
        self._free_s = 0.0
        self._num_items = 0
        self._wake: simpy.Event | None = None
        env.process(self._run())

    def submit(self, block: str, rows: int, *, is_returning: bool) -> Item:
        self._num_items += 1
        item = Item(block=block, rows=rows, is_returning=is_returning, number=self._num_items, done=self._env.event())
        self.queues.add(item)
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None
        return item

    def wait_s(self, block: str, *, is_returning: bool) -> float:
        """Time until a step for an item that comes now."""
        return max(0.0, self._free_s - self._env.now) + self.queues.wait_s(block, is_returning=is_returning)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        while True:
            # Whatever else happens at this instant comes first, so that it shares the step.
            yield self._env.timeout(0)
            items = self.queues.take()
            if not items:
                self._wake = self._env.event()
                yield self._wake
                continue
            rows = sum(item.rows for item in items)
            step_s = self._blocks[items[0].block].step(rows)
            self._free_s = self._env.now + step_s
            self.use.add(step_s, rows)
            yield self._env.timeout(step_s)
            for item in items:
                item.done.succeed()


class _Simulation:
    """All groups, and the choices between them."""

    def __init__(
        self, env: simpy.Environment, deployment: Deployment, *, returning_first: bool, stays: bool, seed: int
    ) -> None:
        self._env, self._deployment, self._seed, self._stays = env, deployment, seed, stays
        self._blocks = {block.name: block for block in deployment.blocks}
        self._homes = {name: deployment.homes(name) for name in self._blocks}
        self._surrogates = {surrogate.block: surrogate for surrogate in deployment.surrogates}
        self.choices: Counter[Cache] = Counter()
        self.groups = {
            name: _Group(env, self._held(name, blocks), returning_first=returning_first)
            for name, blocks in deployment.groups.items()
        }

    def _held(self, group: str, blocks: tuple[str, ...]) -> dict[str, Block]:
        """Blocks of a group, and the surrogates that it holds."""
        held = {name: self._blocks[name] for name in blocks}
        for surrogate in self._deployment.surrogates:
            if surrogate.group == group:
                real = self._blocks[surrogate.block]
                held[_guess(surrogate)] = replace(real, step=real.step.scaled(surrogate.cost_share))
        return held

    def serve(self, number: int, served: ServedTenant) -> Generator[simpy.Event, Any, None]:
        """One request, to its last token."""
        request = served.request
        yield self._env.timeout(request.arrival_s)
        chain = self._deployment.chains[request.tenant]
        state = _State(
            served,
            chain,
            homes=dict.fromkeys(chain, request.cached_at) if request.cached_tokens else {},
            context=request.cached_tokens,
            draw=uniforms((self._seed, number)),
        )
        at = ""
        for token in range(request.output_tokens):
            rows = 1 if token else request.prompt_tokens
            at = yield from self._pass(state, 0, rows, at, _Lineage())
            state.context += rows
            state.is_returning = True
            served.tokens_s.append(self._env.now)

    def _pass(self, state: _State, first: int, rows: int, at: str, lineage: _Lineage) -> _Events:
        """A token's way through its chain from the block `first` on."""
        for index in range(first, len(state.chain)):
            block = state.chain[index]
            surrogate = self._surrogates.get(block)
            if surrogate is None or not state.is_returning:  # prompts have many rows to be wrong in
                at = yield from self._hop(state, block, rows, at, lineage)
                continue
            guess = lineage.child()
            real = self._env.process(self._hop(state, block, rows, at, lineage))
            ahead = self._env.process(self._guess(state, surrogate, index, rows, at, guess))
            is_hit = state.draw() < surrogate.accuracy
            at = yield real
            if is_hit and guess.has_output:
                at = yield ahead
                return at
            guess.end()
        return at

    def _guess(self, state: _State, surrogate: Surrogate, index: int, rows: int, at: str, lineage: _Lineage) -> _Events:
        """The surrogate's output, and the blocks behind it."""
        ready_s = self._hop_s(at, surrogate.group, rows)
        at = yield from self._compute(state, surrogate.group, _guess(surrogate), rows, ready_s, lineage)
        lineage.has_output = True
        return (yield from self._pass(state, index + 1, rows, at, lineage))

    def _hop(self, state: _State, block: str, rows: int, at: str, lineage: _Lineage) -> _Events:
        """A block's step for a request, wherever that is quickest."""
        place = self._place(state, block, rows, at)
        if place.cache is Cache.MOVE:
            self._send_kv(state, block)
        computed = rows + state.context if place.cache is Cache.RECOMPUTE else rows
        if block in state.homes:
            self.choices[place.cache] += 1
            state.served.choices.append(place.cache)
        state.homes[block] = place.group
        return (yield from self._compute(state, place.group, block, computed, place.ready_s, lineage))

    def _compute(self, state: _State, group: str, block: str, rows: int, ready_s: float, lineage: _Lineage) -> _Events:
        if ready_s:
            yield self._env.timeout(ready_s)
        if lineage.is_void:
            yield self._env.event()  # never: nobody waits for this any more
        where = self.groups[group]
        item = where.submit(block, rows, is_returning=state.is_returning)
        lineage.withdraw.append(lambda: where.queues.withdraw(item))
        yield item.done
        if lineage.is_void:
            yield self._env.event()
        return group

    def _place(self, state: _State, block: str, rows: int, at: str) -> Place:
        homes = self._homes[block]
        if self._stays and block in state.homes:
            homes = (state.homes[block],)
        if len(homes) == 1:  # nothing to weigh
            return Place(group=homes[0], cache=Cache.KEEP, ready_s=self._hop_s(at, homes[0], rows), wait_s=0, step_s=0)
        return best_place(self._places(state, block, rows, at))

    def _places(self, state: _State, block: str, rows: int, at: str) -> list[Place]:
        """Every replica, with every treatment of the KV."""
        kind, owner, places = self._blocks[block], state.homes.get(block), list[Place]()
        for name in self._homes[block]:
            hop_s = self._hop_s(at, name, rows)
            wait_s = self.groups[name].wait_s(block, is_returning=state.is_returning)
            step_s = kind.step(rows)
            if owner in (None, name):
                places.append(Place(group=name, cache=Cache.KEEP, ready_s=hop_s, wait_s=wait_s, step_s=step_s))
                continue
            moved_s = max(hop_s, self._kv_s(state, block))
            again_s = kind.step(rows + state.context)
            places += [
                Place(group=name, cache=Cache.MOVE, ready_s=moved_s, wait_s=wait_s, step_s=step_s),
                Place(group=name, cache=Cache.RECOMPUTE, ready_s=hop_s, wait_s=wait_s, step_s=again_s),
            ]
        return places

    def _hop_s(self, at: str, to: str, rows: int) -> float:
        """Time of a request's rows to the group of its next block; a request's first one costs none."""
        return 0.0 if at in ("", to) else self._deployment.links.hop_s(rows)

    def _kv_s(self, state: _State, block: str) -> float:
        """Time until a request's KV would be elsewhere, after what its group is sending already."""
        num_bytes = self._blocks[block].kv_bytes_per_token * state.context
        busy_s = max(0.0, self.groups[state.homes[block]].link_free_s - self._env.now)
        return busy_s + self._deployment.links.move_s(num_bytes)

    def _send_kv(self, state: _State, block: str) -> None:
        self.groups[state.homes[block]].link_free_s = self._env.now + self._kv_s(state, block)


def _guess(surrogate: Surrogate) -> str:
    """Name of a surrogate in its group's queues."""
    return f"surrogate of {surrogate.block}"
