"""One process of the engine: `python -m swiftspec.engine.worker FD`, started by the launcher, never by hand.

It pins itself to its cores before torch starts its threads, loads its models, and then runs role programs, one request
at a time, until its launcher says so or is gone.
"""

import gc
import os
import select
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from swiftspec.documents import ModelRef
from swiftspec.policies import Policy, Request
from swiftspec.policies.effects import Role
from swiftspec.timeline import Span

if TYPE_CHECKING:
    from swiftspec.engine.driver import Model
    from swiftspec.engine.sampling import Sampler

__all__ = ["Committed", "Failed", "Finished", "Generate", "Ready", "Setup", "main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a process is: whose program it runs, which models it holds, on which cores. No channel, no peer."""

    role: Role
    models: Mapping[Role, ModelRef]
    cores: tuple[int, ...]
    channel: str | None
    max_context: int
    tree_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Run this role's program of one request."""

    number: int
    policy: Policy
    request: Request
    sampler: "Sampler"


@dataclass(frozen=True, slots=True)
class Ready:
    """Models are loaded."""

    pid: int
    cores: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """Tokens for the user, as they are known."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The program has ended."""

    spans: list[Span]


@dataclass(frozen=True, slots=True)
class Failed:
    """`sentence` for the user, or a traceback where the fault is ours."""

    sentence: str
    is_user_error: bool


def main() -> None:
    """Obey the launcher until it hangs up."""
    connection = Connection(int(sys.argv[1]))
    setup: Setup = connection.recv()
    os.sched_setaffinity(0, setup.cores)
    try:
        _serve(connection, setup)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the launcher is gone
    except Exception as error:  # whatever it is, the launcher must hear of it
        is_user_error = isinstance(error, ValueError)
        connection.send(Failed(str(error) if is_user_error else traceback.format_exc(), is_user_error))


def _serve(connection: Connection, setup: Setup) -> None:
    import torch

    from swiftspec.engine.channel import Channel
    from swiftspec.engine.driver import Driver

    torch.set_num_threads(len(setup.cores))
    torch.set_num_interop_threads(1)
    models = _load(setup)
    # Anything to read while a request runs means: stop (the launcher hung up, or said so).
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN | select.POLLHUP)

    def interrupted() -> bool:
        return bool(readable.poll(0))

    channel = None
    if setup.channel is not None:
        channel = Channel(setup.channel, bind=setup.role is Role.TARGET, interrupted=interrupted)
    gc.disable()  # a collection in the middle of a round would be its longest part
    gc.freeze()
    connection.send(Ready(os.getpid(), tuple(sorted(os.sched_getaffinity(0)))))
    while True:
        command = connection.recv()
        if not isinstance(command, Generate):
            continue  # a stop that came after the end
        if channel is not None:
            channel.request = command.number
        driver = Driver(
            role=setup.role,
            models=models,
            channel=channel,
            commit=lambda tokens: connection.send(Committed(tokens)),
            interrupted=interrupted,
            sampler=command.sampler,
        )
        with torch.inference_mode():
            spans = driver.run(command.policy.programs(command.request)[setup.role])
        connection.send(Finished(spans))
        gc.collect()


def _load(setup: Setup) -> dict[Role, "Model"]:
    from swiftspec.engine.cached import CachedDecoder

    return {
        role: CachedDecoder.load(reference, max_context=setup.max_context, tree_slots=setup.tree_slots)
        for role, reference in setup.models.items()
    }


if __name__ == "__main__":
    main()
