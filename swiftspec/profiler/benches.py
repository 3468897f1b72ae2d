"""Benches: engines to measure on, one for every device group and split of possible plans."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from swiftspec.artifacts.candidate import named_split
from swiftspec.devices.local import TREE_SLOTS, Device
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.fork_server_client import shared_fork_server
from swiftspec.engine.process.placement import LocalExecutor, Placement
from swiftspec.engine.process.protocol import Setup
from swiftspec.engine.process.run_folder import run_folder
from swiftspec.engine.process.worker_handle import Worker
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef
from swiftspec.policies import DraftKind, Layout, Policy, Request
from swiftspec.policies.effects import Role
from swiftspec.profiler.grids import host_shapes
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.timing.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """An engine to measure on, and the group sizes that its spans are recorded for. silent: without collectives."""

    device: Device
    layout: Layout
    groups: dict[Role, tuple[int, ...]]
    ranks: dict[Role, int] = field(default_factory=dict)
    silent: bool = False

    def __str__(self) -> str:
        return f"{self.layout} {named_split(self.groups, self.ranks)}{', shards' * self.silent}"

    @contextmanager
    def open(self, *, target: ModelRef, draft: ModelRef, max_context: int, num_requests: int = 1) -> Iterator[Launcher]:
        """The engine, for so many requests at once."""
        kind = _NoOpExecutor if self.silent else LocalExecutor
        with (
            run_folder() as folder,
            shared_fork_server() as fork_server,
            Launcher(
                {Role.TARGET: target, Role.DRAFT: draft},
                Placement(groups=self.groups, ranks=self.ranks, device=self.device),
                layout=self.layout,
                max_context=max_context,
                admission=AdmissionLimits(max_running=num_requests),
                executor=kind(folder, fork_server),
            ) as engine,
        ):
            yield engine

    def host_shapes(self, kind: DraftKind = DraftKind.SERIAL, *, all_shapes: bool = True) -> list[Policy]:
        """Shapes for a kind of draft whose trees fit into the engine's caches, all of them or one of every policy."""
        most = TREE_SLOTS[self.device]
        shapes = host_shapes(self.layout, kind, all_shapes=all_shapes)
        return [shape for shape in shapes if max(shape.draft_rows, shape.target_rows) <= most]


def timeline_of(engine: Launcher, policy: Policy, prompt: tuple[int, ...], *, max_new_tokens: int = 1) -> Timeline:
    """One run of a program; the request is named by its prompt's length. KeyboardInterrupt if it was cut short."""
    request = Request(prompt=prompt, max_new_tokens=max_new_tokens)
    generation = engine.generate(policy, request, request_id=str(len(prompt)), sampler=Sampler())
    if generation.interrupted:
        raise KeyboardInterrupt
    return generation.timeline


class _NoOpExecutor(LocalExecutor):
    """This machine, with TP groups that compute without sending anything."""

    def start(self, setup: Setup) -> Worker:
        return super().start(replace(setup, silent=True))


def benches_of(
    device: Device, num_devices: int, ranks: int = 1, *, kind: DraftKind = DraftKind.SERIAL
) -> Iterator[Bench]:
    """Groups of every size, and splits; then groups of cores that ranks can divide, as shards and whole.

    Without ranks a group of cores is one process, a group of GPUs one process each. A block drafter is in its target's
    process: there are no splits. ValueError for ranks that are not 1 to `num_devices`, or that would divide a head.
    """
    if kind.reads_target and ranks > 1:
        raise FieldError("ranks", ranks, "expected 1 with a head, which ranks do not divide")
    if not 1 <= ranks <= num_devices:
        raise FieldError("ranks", ranks, f"expected 1 to {num_devices}, the number of devices")
    undivided = [
        Bench(device=device, layout=Layout.COLOCATED, groups={Role.TARGET: tuple(range(count))})
        for count in range(1, num_devices + 1)
    ]
    for count in range(1, num_devices if kind is not DraftKind.BLOCK else 1):
        groups = {Role.TARGET: tuple(range(count)), Role.DRAFT: tuple(range(count, num_devices))}
        undivided.append(Bench(device=device, layout=Layout.DISAGGREGATED, groups=groups))
    yield from undivided
    for bench in undivided:
        divided = {role: ranks for role, devices in bench.groups.items() if ranks > 1 and not len(devices) % ranks}
        if divided:
            yield replace(bench, ranks=divided, silent=True)
            yield replace(bench, ranks=divided)
