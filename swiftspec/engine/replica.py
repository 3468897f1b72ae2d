"""A replica of the engine: target groups that serve a request together, its queue, and the drafts of its requests."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from swiftspec.engine.process.worker_group import WorkerGroup
from swiftspec.scheduler.admission import AdmissionLimits, AdmissionQueue
from swiftspec.scheduler.routing import LeastLoaded, Replicas, Router

__all__ = ["Replica", "replicas_of"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replica:
    """A target's groups, the requests that wait for them or run there, and who drafts for these.

    targets: as many as a policy needs for a request. drafts: none if no separate process drafts.
    """

    targets: Sequence[WorkerGroup]
    drafts: Sequence[WorkerGroup]
    queue: AdmissionQueue
    router: Router

    @property
    def num_requests(self) -> int:
        return self.queue.num_running + self.queue.num_waiting

    def next_draft(self) -> WorkerGroup | None:
        """The draft of the next request: of those that can take one, that with the fewest; None if there are none."""
        if not self.drafts:
            return None
        counts = [draft.num_open if draft.has_room else sys.maxsize for draft in self.drafts]
        return self.drafts[self.router.choose(counts)]


def replicas_of(
    targets: Sequence[WorkerGroup], drafts: Sequence[WorkerGroup], replicas: Replicas, admission: AdmissionLimits
) -> Iterator[Replica]:
    """Replicas with equal shares of the targets, each with a queue of its own, and with all drafts or its own."""
    size, router = len(targets) // replicas.num_targets, LeastLoaded()
    for number in range(replicas.num_targets):
        yield Replica(
            targets=targets[number * size : (number + 1) * size],
            drafts=drafts if replicas.num_drafts else drafts[number : number + 1],
            queue=AdmissionQueue(admission),
            router=router,
        )
