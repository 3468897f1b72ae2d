"""Running a server: the engine's start, signals, failures and the end of the processes."""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from swiftspec.artifacts.plan import Plan
from swiftspec.engine.api import Stats
from swiftspec.engine.async_api import AsyncEngine
from swiftspec.engine.requests import Tenant
from swiftspec.errors import EngineError
from swiftspec.server.app import make_app
from swiftspec.server.connections import (
    ACCEPTED_AT_ONCE,
    ConnectionLimits,
    Connections,
    bounded_protocol,
    free_descriptors,
    raise_descriptor_limit,
)
from swiftspec.server.serving import ServerPhase, Serving, ServingOptions

_LOOK_EVERY_S = 0.1
_SWEEP_EVERY_S = 1.0
_MOST_UNACCEPTED = 1024
_FLUSHED_WITHIN_S = 1.0  # after the last request has ended
_WARM_UP_TOKENS = 16
_NOTHING = Stats(requests=0, prompt_tokens=0, tokens=0, tokens_per_s=0.0, tokens_per_round=0.0, losses=0, restarts=0)


def listen(host: str, port: int, *, send_timeout_s: float) -> socket.socket:
    """A listening socket. ValueError if the address is taken, or none of this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=_MOST_UNACCEPTED)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "no such port"
        raise ValueError(f"--host {host} --port {port}: cannot listen there ({why})") from error
    # Accepted connections inherit it: the kernel ends one whose client has stopped taking what was sent.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * send_timeout_s))
    # asyncio sets this for sockets that it made. Without it a chunk waits until the client has acknowledged the last
    # one, which takes 40 ms on a connection that is used again.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def serve(
    plan: Plan,
    listening: socket.socket,
    *,
    options: ServingOptions,
    ready: Callable[[Sequence[Tenant]], None],
    **engine_options: Any,
) -> Stats:
    """Serve a plan until SIGINT or SIGTERM; figures of the requests that ended well.

    The first signal ends the acceptance of requests, and those under way have `drain_s` to end; a second one ends
    them at once.

    listening: the socket of `listen`, which is closed at the end. ready: called with the target and its tenants when
    requests are accepted. **engine_options: options of `Engine`.

    ValueError: if the plan cannot be run here. EngineError: if the target died, after every request has been told.
    """
    raise_descriptor_limit()
    signals, state = _noted_signals(), Serving(options)
    connections = Connections(ConnectionLimits(), clock=time.monotonic, free_descriptors=free_descriptors)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a line for each odd request of anybody is no news
    config = uvicorn.Config(
        make_app(state),
        http=bounded_protocol(connections),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=int(_FLUSHED_WITHIN_S),
    )
    server = _Server(config)
    # It answers while the engine starts, so that whoever asks for its health learns that it is starting.
    answering = asyncio.create_task(server.serve(sockets=[listening]))
    sweeping = asyncio.create_task(_sweep(connections))
    running = asyncio.create_task(_run(AsyncEngine(plan, **engine_options), state, signals, ready))
    interrupted = asyncio.create_task(signals[0].wait())
    try:
        await asyncio.wait((running, interrupted), return_when=asyncio.FIRST_COMPLETED)
        if state.phase is ServerPhase.STARTING and not running.done():
            running.cancel()
        with suppress(asyncio.CancelledError):
            return await running
        return _NOTHING  # ended before it served
    finally:
        interrupted.cancel()
        sweeping.cancel()
        server.should_exit = True
        await answering
        await state.close()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would end it before the requests under way."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start; the queue of connections that are not accepted yet may be longer than what is accepted at once."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(_MOST_UNACCEPTED)


async def _sweep(connections: Connections) -> None:
    while True:
        await asyncio.sleep(_SWEEP_EVERY_S)
        connections.sweep()


def _noted_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Events of the first signal, which asks for an orderly end, and of the second, for one at once."""
    first, second = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, lambda: (second if first.is_set() else first).set())
    return first, second


async def _run(
    starting: AsyncEngine,
    state: Serving,
    signals: tuple[asyncio.Event, asyncio.Event],
    ready: Callable[[Sequence[Tenant]], None],
) -> Stats:
    """Start the engine, and let it serve until a signal, or the target's end: an EngineError."""
    async with starting as engine:
        await engine.warm_up("A", max_new_tokens=_WARM_UP_TOKENS)
        await state.open(engine)
        ready(engine.tenants)
        first, second = signals
        failure = ""
        while not first.is_set() and not (failure := engine.state().failure):
            with suppress(TimeoutError):
                await asyncio.wait_for(first.wait(), _LOOK_EVERY_S)
        if failure:
            state.phase = ServerPhase.FAILED
        await _drain(state, second, _FLUSHED_WITHIN_S if failure else state.options.drain_s)
        stats = engine.stats()
    if failure:
        raise EngineError(failure)
    return stats


async def _drain(state: Serving, second_signal: asyncio.Event, within_s: float) -> None:
    """Let the requests under way end, but not after a second signal."""
    draining = asyncio.create_task(state.drain(within_s))
    hurried = asyncio.create_task(second_signal.wait())
    await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not draining.done():
        draining.cancel()
        await state.drain(0.0)
    with suppress(TimeoutError):
        await asyncio.wait_for(state.idle.wait(), _FLUSHED_WITHIN_S)
