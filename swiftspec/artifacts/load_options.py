"""Limits of the scheduler under a load, which a plan assumes."""

from typing import Self

from pydantic import Field

from swiftspec.files.document import Facts
from swiftspec.scheduler.routing import Replicas


class ReplicaCounts(Facts):
    """How requests were shared among targets and drafts.

    num_targets, num_drafts: as of `Replicas`.
    """

    num_targets: int = Field(default=1, ge=1, exclude_if=lambda count: count == 1)
    num_drafts: int | None = Field(default=None, ge=1, exclude_if=lambda count: count is None)

    @property
    def replicas(self) -> Replicas:
        """The same for those who route."""
        return Replicas(num_targets=self.num_targets, num_drafts=self.num_drafts)


class LoadOptions(ReplicaCounts):
    """Limits of the scheduler, of each target.

    max_running: requests that share the devices at once.
    max_waiting: requests in the queue; more are refused. Unlimited if None.
    num_blocks: blocks of 16 tokens in the target's cache. Unlimited if None.
    prefill_rows: prompt tokens of one step. If None, 32 on a CPU and 128 elsewhere.
    gather_s: how long verifications wait for those of other requests, if the draft has devices of its own. If None,
        `artifacts.candidate.usual_gather_s`.
    control: how much is drafted and verified under load: `fixed:K`, `goodput`, `goodput-per-request`, `worth`, `slo`,
        or `none`: all that the policy asks for. If None, as planned.
    replay: whether simulated requests replay rounds that were recorded of requests alone, where these do not depend on
        the load; they do if None.
    """

    max_running: int = Field(default=8, ge=1)
    max_waiting: int | None = Field(default=None, ge=0)
    num_blocks: int | None = Field(default=None, ge=1)
    prefill_rows: int | None = Field(default=None, ge=1)
    gather_s: float | None = Field(default=None, ge=0)
    control: str | None = Field(default=None, exclude_if=lambda control: control is None)
    replay: bool | None = None

    def on(self, device: str) -> Self:
        """The options with what depends on the kind of device."""
        return self.model_copy(update={"prefill_rows": self.prefill_rows or usual_prefill_rows(device)})

    def with_room(self, num_blocks: int | None) -> Self:
        """The options with no more blocks than there is memory for; None is unlimited."""
        known = [limit for limit in (self.num_blocks, num_blocks) if limit is not None]
        return self.model_copy(update={"num_blocks": min(known, default=None)})


def usual_max_running(device: str) -> int:
    """Requests at once on a replica of a fleet: on a GPU as many as a step has rows, on a CPU, where rows cost, few."""
    return 8 if device == "cpu" else 64


def usual_prefill_rows(device: str) -> int:
    """On a CPU few, since rows of a prompt are bound by arithmetic there, and other requests wait for them."""
    return 32 if device == "cpu" else 128
