"""One process of the engine, forked by the fork server for the launcher, or for a host on behalf of one.

It pins itself to its cores before torch starts its threads, and loads its share of the models. The leader of a TP group
then runs role programs, see `worker_loop`; the others repeat its calls. It ends with its launcher.
"""

import gc
import os
import select
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection

import torch

from swiftspec.engine.channel.zmq_channel import Channel
from swiftspec.engine.model.drafts.block_drafter import BlockRunner
from swiftspec.engine.model.drafts.features import Features, most_payload_bytes
from swiftspec.engine.model.drafts.head_runner import HeadRunner
from swiftspec.engine.model.forward_batch import Model
from swiftspec.engine.model.memory import trim_memory
from swiftspec.engine.model.models import Models, load_models, on_devices, warm_up, with_vocabulary
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.engine.model.sampling.chain_sampler import most_proposal_bytes
from swiftspec.engine.model.sharded_model import ShardedModel, follow
from swiftspec.engine.parallel.tp_group import NoOpTPGroup, TPGroup
from swiftspec.engine.process.clocks import TimedConnection
from swiftspec.engine.process.protocol import FailureReport, ProcessInfo, Setup, cores_of
from swiftspec.engine.process.worker_loop import WorkerLoop
from swiftspec.policies.effects import Role


def serve(connection: Connection, *, launcher: int | None = None) -> None:
    """Run a process of the engine: obey the launcher until it hangs up.

    launcher: pidfd, if the kernel has them, of the program that the fork server belongs to: the launcher's, or a host.
    A process forked by that program keeps its pipes open.
    """
    torch.set_num_interop_threads(1)
    obey(connection, launcher=launcher)


def obey(connection: Connection, *, launcher: int | None = None) -> None:
    """Serve one role in this thread."""
    try:
        setup: Setup = connection.recv()
    except (EOFError, OSError):
        return  # the launcher hung up before any command, or its machine vanished
    _end_with_launcher(connection, launcher)
    if setup.curve is not None:  # it may be on another machine, with another clock
        connection = TimedConnection(os.dup(connection.fileno()))
    os.sched_setaffinity(0, cores_of(setup))
    try:
        _serve(connection, setup)
    except (EOFError, BrokenPipeError, ConnectionResetError, TimeoutError):
        pass  # the launcher is gone
    except Exception as error:  # noqa: BLE001 - the launcher must be told, whatever it is
        with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):  # it failed because the launcher is ending
            connection.send([_failure(error, setup)])


def _failure(error: Exception, setup: Setup) -> FailureReport:
    # Of Python, a GPU, or the C library as torch reports it.
    is_out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if is_out_of_memory or (isinstance(error, RuntimeError) and "allocate memory" in str(error)):
        models = " and ".join(map(str, setup.models.values()))
        return FailureReport(
            f"{models}: out of memory in the {setup.name} process, {_first_line(error)}", is_user_error=True
        )
    if isinstance(error, ValueError):
        return FailureReport(str(error), is_user_error=True)
    why = f"{type(error).__name__}: {_first_line(error)}"
    return FailureReport(f"the {setup.name} process failed ({why})", is_user_error=False, trace=traceback.format_exc())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or ["it does not say why"])[0]


def _end_with_launcher(connection: Connection, launcher: int | None) -> None:
    """End at once when the launcher has gone, whatever the main thread does: a collective may wait forever."""
    hung_up = select.poll()
    hung_up.register(connection.fileno(), select.POLLRDHUP)  # over TCP a peer that closes causes no POLLHUP
    if launcher is not None:
        hung_up.register(launcher, select.POLLIN)

    def wait() -> None:
        hung_up.poll()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _serve(connection: Connection, setup: Setup) -> None:
    device = on_devices(setup.device, setup.devices)
    tp_group = TPGroup.join(setup.tp_group, rank=setup.rank, size=setup.size, device=device, curve=setup.curve)
    models = _loaded(setup, tp_group, device)
    trim_memory()
    gc.disable()  # a garbage collection would make a round much longer
    gc.freeze()
    ready = ProcessInfo(
        role=setup.role,
        group=setup.group,
        rank=setup.rank,
        pid=os.getpid(),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        device=device,
        tenant_bytes=models[Role.TARGET].tenant_bytes if Role.TARGET in models else (),
    )
    if tp_group.is_leader:
        leading: Mapping[Role, Model] = models
        if tp_group.size > 1:
            # A head is no shard: the leader computes it whole.
            leading = {
                role: model if isinstance(model, HeadRunner | BlockRunner) else ShardedModel(model, tp_group, role)
                for role, model in models.items()
            }
        if Role.DRAFT in leading:
            draft = with_vocabulary(leading[Role.DRAFT], own_size=models[Role.DRAFT].vocab_size, size=setup.vocab_size)
            leading = {**leading, Role.DRAFT: draft}
        features = _features_across(models) if setup.elsewhere else ()
        _lead(connection, setup, leading, ready, features=features)
    else:
        connection.send([ready])
        with torch.inference_mode():
            follow(models, tp_group)
        connection.recv()  # the leader is gone; the launcher will notice, and hang up


def _loaded(setup: Setup, tp_group: TPGroup, device: str) -> Models:
    models = load_models(
        setup.models,
        elsewhere=setup.elsewhere,
        max_context=setup.max_context,
        tree_slots=setup.tree_slots,
        num_sequences=setup.max_running,
        tenants=setup.tenants,
        device=device,
        tp_group=NoOpTPGroup(tp_group) if setup.silent else tp_group,
    )
    warm_up(models)
    return models


def _features_across(models: Models) -> Sequence[Features]:
    """Each sequence's features that are sent, or come, beside verdicts."""
    (model,) = models.values()
    if isinstance(model, BlockRunner):
        return ()
    return model.caches if isinstance(model, ModelRunner) else model.target


def _lead(
    connection: Connection,
    setup: Setup,
    models: Mapping[Role, Model],
    ready: ProcessInfo,
    *,
    features: Sequence[Features],
) -> None:
    is_target = setup.role is Role.TARGET
    with ExitStack() as stack:
        channels = [
            stack.enter_context(
                Channel(
                    address,
                    bind=is_target,
                    leads=is_target,
                    vocab_size=setup.vocab_size,
                    curve=setup.curve if address.startswith("tcp:") else None,
                    most_payload_bytes=max(
                        [most_proposal_bytes(setup.vocab_size, setup.tree_slots), *map(most_payload_bytes, features)]
                    ),
                )
            )
            for address in setup.channels
        ]
        connection.send([ready])
        with torch.inference_mode():
            WorkerLoop(connection, setup, models, channels, features).run()
