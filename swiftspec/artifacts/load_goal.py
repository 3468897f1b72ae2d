"""Goal of a plan for many requests: goodput under latency limits. And the scheduler's limits, which it assumes."""

from collections.abc import Sequence
from typing import Self

from pydantic import Field

from swiftspec.artifacts.workload import RequestClass
from swiftspec.files.document import Facts

__all__ = ["LoadGoal", "LoadOptions", "usual_max_running", "usual_prefill_rows"]


class LoadOptions(Facts):
    """Limits of the scheduler.

    Parameters
    ----------
    max_running : int
        Requests that share the devices at once.
    max_waiting : int or None
        Requests in the queue; more are refused. Unlimited if None.
    num_blocks : int or None
        Blocks of 16 tokens in the target's cache. Unlimited if None.
    prefill_rows : int or None
        Prompt tokens of one step. If None, 32 on a CPU and 128 elsewhere.
    gather_s : float or None
        How long verifications wait for those of other requests, if the draft has devices of its own. If None,
        `artifacts.gathering`'s.
    control : str or None
        How much is drafted and verified under load: `fixed:K`, `goodput`, `goodput-per-request`, `worth`, `slo`, or
        `none`: all that the policy asks for. If None, as planned.
    replay : bool or None
        Whether simulated requests replay rounds that were recorded of requests alone, instead of growing trees. If
        None, where models share devices, and elsewhere where there are more than 1000 requests. Policies whose rounds
        cannot be recorded are always simulated in full.
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


class LoadGoal(Facts):
    """Limits of every class of requests, and the share of the requests that must keep them.

    Parameters
    ----------
    classes : tuple of RequestClass
        With the limits that count: those asked for, and otherwise the workload's own.
    percentile : float, optional
        A candidate is acceptable only if this percentage of all requests keep their limits. Any is if not given.
    """

    classes: tuple[RequestClass, ...] = Field(min_length=1)
    percentile: float | None = Field(default=None, gt=0, le=100)

    @classmethod
    def of(
        cls,
        classes: Sequence[RequestClass],
        *,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        percentile: float | None = None,
    ) -> Self:
        """Goal for the classes of a workload. A limit that is given replaces the one of every class.

        Raises
        ------
        ValueError
            If there is a percentile, and nothing to be kept.
        """
        given = {name: limit for name, limit in (("ttft_s", ttft_s), ("tpot_s", tpot_s)) if limit is not None}
        goal = cls(classes=tuple(each.model_copy(update=given) for each in classes), percentile=percentile)
        if percentile is not None and not goal.is_limited:
            raise ValueError(
                f"percentile is {percentile:g}, but there are no limits to keep: neither ttft_s nor tpot_s is given, "
                "and no class of the workload has one"
            )
        return goal

    @property
    def is_limited(self) -> bool:
        """Whether any request has a limit; without one, the objective is the mean end-to-end time."""
        return any(limit is not None for each in self.classes for limit in (each.ttft_s, each.tpot_s))

    def accepts(self, attained: float) -> bool:
        """Whether this share of the requests is enough."""
        return self.percentile is None or 100 * attained >= self.percentile - 1e-9

    def score(self, *, attained: float, goodput: float, e2e_s: float) -> tuple[bool, float, float]:
        """Sort key of a candidate, higher is better: acceptable, then goodput, then mean end-to-end time.

        Goodputs that agree in three digits are equal: how soon the last request ends moves more than that.
        """
        return (self.accepts(attained), float(f"{goodput:.3g}"), -e2e_s) if self.is_limited else (True, 0.0, -e2e_s)


def usual_max_running(device: str) -> int:
    """Requests at once on a replica of a fleet: on a GPU as many as a step has rows, on a CPU, where rows cost, few."""
    return 8 if device == "cpu" else 64


def usual_prefill_rows(device: str) -> int:
    """On a CPU few, since rows of a prompt are bound by arithmetic there, and other requests wait for them."""
    return 32 if device == "cpu" else 128
