"""Hosts on a Ray cluster: one actor for each process of an engine, in one placement group.

Ray finds room, sets the GPUs, and starts a host again, on another node if its own has died. It carries no message of
the engine: hosts connect to the launcher by themselves.
"""

import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any, Literal, get_args

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import candidate_of
from swiftspec.devices.local import Device
from swiftspec.engine.cluster.executor import ClusterExecutor
from swiftspec.engine.cluster.host import Host
from swiftspec.engine.process.placement import Placement
from swiftspec.engine.process.protocol import WorkerSpec
from swiftspec.errors import EngineError, FieldError, check_extra
from swiftspec.interpreters import ray_options
from swiftspec.policies.effects import Role

Strategy = Literal["SPREAD", "PACK"]
_ANSWERS_WITHIN_S = 5.0
_QUIET = {  # read when Ray is imported
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # or it warns that this will be the default
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # or it prints among the text, on stdout, that a node has died
}
_RESOURCES: dict[Device, str] = {"cpu": "CPU", "cuda": "GPU"}


@contextmanager
def ray_executor(
    plan: Plan | str | Path,
    policy: str | None = None,
    *,
    address: str = "auto",
    strategy: Strategy = "SPREAD",
    within_s: float = 60.0,
) -> Iterator[ClusterExecutor]:
    """A Ray cluster as the executor of a plan's engine: `Engine(plan, executor=executor)`.

    policy: one of the plan's alternatives; its choice if not given.
    address: address of the cluster, such as `10.0.0.1:6379`; `auto` is that of this machine, or what RAY_ADDRESS names.
    strategy: whether roles are to be on different nodes or on the same, if there is room.
    within_s: longest wait for room, and for the hosts.

    ValueError: if Ray is not installed, there is no cluster, or it has no room in time. EngineError: if a host cannot
    reach this machine.
    """
    made = plan if isinstance(plan, Plan) else Plan.load(Path(plan))
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy is {strategy!r}; expected {' or '.join(get_args(Strategy))}")
    candidate = candidate_of(made, policy)
    device: Device = "cuda" if made.device == "cuda" else "cpu"
    target_groups = candidate.build().target_groups
    groups = Placement(
        groups=candidate.groups, ranks=candidate.ranks, target_groups=target_groups, device=device
    ).worker_specs()
    used = [number for group in groups for spec in group for number in spec.devices]
    if device == "cuda" and len(set(used)) < len(used):
        raise ValueError(f"{candidate.describe()} has several processes on a GPU; expected one each on a Ray cluster")
    with ExitStack() as stack:
        own_address = stack.enter_context(_connected(address))
        room, bundles = stack.enter_context(
            _placed(groups, device, address=address, strategy=strategy, within_s=within_s)
        )
        slots = [spec for group in groups for spec in group]
        executor = stack.enter_context(ClusterExecutor(slots, device=device, address=own_address))
        answers = stack.enter_context(_hosted(executor, list(zip(slots, bundles, strict=True)), room, device))
        executor.await_hosts(within_s, check=lambda: _check(answers))
        yield executor


@contextmanager
def _connected(address: str) -> Iterator[str]:
    """Context with a connection to the cluster, unless this program has one; this machine's address in it."""
    check_extra("ray", needed_by="a Ray cluster")
    for variable, value in _QUIET.items():
        os.environ.setdefault(variable, value)
    ray = import_module("ray")
    with ExitStack() as stack:
        if not ray.is_initialized():
            _check_answers(address)
            before = signal.getsignal(signal.SIGTERM)
            try:
                with ray_options() as options:
                    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                why = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise _no_cluster(address, why) from error
            stack.callback(ray.shutdown)
            with suppress(ValueError):  # not in the main thread, where Ray sets no handler either
                signal.signal(signal.SIGTERM, before)
        own = ray.get_runtime_context().get_node_id()
        yield next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == own)


def _check_answers(address: str) -> None:
    """ValueError if nothing listens at `host:port`: Ray would try for a long time, and then end the program."""
    if "://" in address:
        raise FieldError("ray", repr(address), "expected HOST:PORT or auto, for the launcher is to be on a node")
    host, _, port = (_latest_cluster() if address == "auto" else address).rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERS_WITHIN_S).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, getattr(error, "strerror", None) or str(error)) from error


def _latest_cluster() -> str:
    """Address that `auto` means, if Ray has noted one; the note of a cluster that was killed stays."""
    if noted := os.environ.get("RAY_ADDRESS"):
        return noted
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    with suppress(OSError):
        return Path(folder, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip()
    return ""


def _no_cluster(address: str, why: str) -> FieldError:
    return FieldError("ray", f"{address!r}, where no cluster answers ({why})", "expected the address of one, or auto")


@contextmanager
def _placed(
    groups: Sequence[Sequence[WorkerSpec]], device: Device, *, address: str, strategy: Strategy, within_s: float
) -> Iterator[tuple[Any, Sequence[int]]]:
    """A placement group with room for all, and the bundle of each: a TP group has one node, if any is large enough."""
    ray, placement = import_module("ray"), import_module("ray.util.placement_group")
    kind = _RESOURCES[device]
    largest = max(node["Resources"].get(kind, 0) for node in ray.nodes() if node["Alive"])
    together = [
        [group] if sum(len(spec.devices) for spec in group) <= largest else [[spec] for spec in group]
        for group in groups
    ]
    parts = [part for several in together for part in several]
    bundles = [{kind: sum(len(spec.devices) for spec in part)} for part in parts]
    made = placement.placement_group(bundles, strategy=strategy, name=_name("engine"))
    try:
        if not made.wait(within_s):
            asked = ", ".join(
                f"{bundle[kind]} {kind}s for the {' and the '.join(spec.name for spec in part)}"
                for bundle, part in zip(bundles, parts, strict=True)
            )
            has, free = (int(found.get(kind, 0)) for found in (ray.cluster_resources(), ray.available_resources()))
            raise ValueError(
                f"the Ray cluster at {address} has no room within {within_s:g} s for {asked}; "
                f"of its {has} {kind}s, at most {int(largest)} on a node, {free} are free"
            )
        yield made, [number for number, part in enumerate(parts) for _ in part]
    finally:
        placement.remove_placement_group(made)


def _name(what: str) -> str:
    """Name for Ray's dashboard and tools, which no other run has."""
    return f"swiftspec {what} {secrets.token_hex(4)}"


@contextmanager
def _hosted(
    executor: ClusterExecutor, slots: Sequence[tuple[WorkerSpec, int]], room: Any, device: Device
) -> Iterator[Sequence[Any]]:
    """The answers of an actor for every slot once it is ready. A target's is not restarted: its text goes with it."""
    ray, strategies = import_module("ray"), import_module("ray.util.scheduling_strategies")
    answers = []
    with ExitStack() as stack:
        for number, (spec, bundle) in enumerate(slots):
            options = {
                "num_cpus": len(spec.devices) if device == "cpu" else 0,
                "num_gpus": len(spec.devices) if device == "cuda" else 0,
                "max_restarts": 0 if spec.role is Role.TARGET else -1,
                "name": _name(spec.name),
                "scheduling_strategy": strategies.PlacementGroupSchedulingStrategy(room, bundle),
            }
            gpus = tuple(range(len(spec.devices))) if device == "cuda" else None
            actor = (
                ray.remote(_RayHost)
                .options(**options)
                .remote(executor.launcher, executor.key, slot=number, devices=gpus, folder=os.getcwd())
            )
            stack.callback(ray.kill, actor)
            answers.append(actor.is_ready.remote())
        yield answers


def _check(answers: Sequence[Any]) -> None:
    """EngineError if a host could not start."""
    ray = import_module("ray")
    ready, _ = ray.wait(answers, num_returns=len(answers), timeout=0)
    for answer in ready:
        try:
            ray.get(answer)
        except ray.exceptions.RayError as error:
            raise EngineError(f"a host could not start: {str(error).strip().splitlines()[-1]}") from error


class _RayHost:
    """The actor: a process of Ray's that is a host. Ray starts it again if it ends, as it does without its launcher."""

    def __init__(
        self, launcher: tuple[str, int], key: bytes, *, slot: int, devices: Sequence[int] | None, folder: str
    ) -> None:
        with suppress(OSError):  # models may be named relative to the launcher's folder, if this node has it, too
            os.chdir(folder)
        self._host = Host(launcher, key, slot=slot, devices=devices)
        Thread(target=self._serve, name="swiftspec-host", daemon=True).start()

    def _serve(self) -> None:
        try:
            self._host.serve()
        except (EngineError, ValueError):
            os._exit(1)

    def is_ready(self) -> bool:
        """Whether it has reached the launcher; raises what kept it from that."""
        return True
