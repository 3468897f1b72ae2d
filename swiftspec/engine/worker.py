"""One process of the engine: `python -m swiftspec.engine.worker FD`, started by the launcher, never by hand.

It pins itself to its cores before torch starts its threads, loads its models, and runs role programs, one request at a
time, until its launcher is gone.
"""

import gc
import os
import select
import sys
import traceback
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import torch

from swiftspec.engine.cached import CachedDecoder
from swiftspec.engine.channel import Channel
from swiftspec.engine.driver import Driver
from swiftspec.engine.protocol import Committed, Failed, Finished, Generate, Ready, Setup
from swiftspec.policies.effects import Role

__all__ = ["main"]

_WARM_ROWS = 32  # more are rare, and merely slower the first time


def main() -> None:
    """Obey the launcher until it hangs up."""
    connection = Connection(int(sys.argv[1]))
    setup: Setup = connection.recv()
    os.sched_setaffinity(0, setup.cores)
    try:
        _serve(connection, setup)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the launcher is gone
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher must hear of it
        is_user_error = isinstance(error, ValueError)
        connection.send(Failed(str(error) if is_user_error else traceback.format_exc(), is_user_error))


def _serve(connection: Connection, setup: Setup) -> None:
    torch.set_num_threads(setup.num_threads)
    torch.set_num_interop_threads(1)
    if setup.device != "cpu":
        torch.cuda.set_device(setup.device)
    room: dict[str, Any] = {"max_context": setup.max_context, "tree_slots": setup.tree_slots}
    models = {
        role: CachedDecoder.load(reference, device=setup.device, **room) for role, reference in setup.models.items()
    }
    for model in models.values():
        model.warm_up(_WARM_ROWS)
    # Anything to read while a request runs means: stop (the launcher hung up, or said so).
    readable = select.poll()
    readable.register(connection.fileno(), select.POLLIN | select.POLLHUP)

    def interrupted() -> bool:
        return bool(readable.poll(0))

    gc.disable()  # a collection in the middle of a round would be its longest part
    gc.freeze()
    with ExitStack() as stack:
        bind = setup.role is Role.TARGET
        channels = [
            stack.enter_context(Channel(address, bind=bind, interrupted=interrupted)) for address in setup.channels
        ]
        connection.send(Ready(os.getpid(), tuple(sorted(os.sched_getaffinity(0)))))
        while True:
            command = connection.recv()
            if not isinstance(command, Generate):
                continue  # a stop that came after the end
            for channel in channels:
                channel.request = command.number
            driver = Driver(
                role=setup.role,
                rank=setup.rank,
                models=models,
                channels=channels,
                commit=lambda tokens: connection.send(Committed(tokens)),
                interrupted=interrupted,
                sampler=command.sampler,
            )
            with torch.inference_mode():
                spans = driver.run(command.policy.programs(command.request)[setup.role])
            connection.send(Finished(spans))
            gc.collect()


if __name__ == "__main__":
    main()
