"""A load to plan for: the requests, how they are served, and how many of them are simulated."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftspec.artifacts.goal import Goal
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.artifacts.under_load import workload_sha256
from swiftspec.artifacts.workload import Workload
from swiftspec.errors import FieldError
from swiftspec.files.document import Basis

if TYPE_CHECKING:
    from swiftspec.planner.under_load.serving_engine import ServingEngine

# Simulated by default: so many output tokens that two dozen candidates take about a minute, but some requests at least.
_ENOUGH_TOKENS = 15_000
_LEAST_REQUESTS = 32


def load_of(workload: Workload) -> float:
    """Requests per second, or the clients of a closed loop."""
    found = workload.arrivals.num_clients if workload.is_closed else workload.rate
    assert found is not None, "check_divisible"
    return found


def check_divisible(workload: Workload) -> None:
    """ValueError if replicas cannot share a workload."""
    if workload.is_closed:
        return
    if workload.rate is None:
        why = "a fleet cannot divide a workload whose requests all arrive at 0: expected a rate, or clients"
        raise FieldError("workload", workload.arrivals, why)
    workload.check_arrivals("a fleet at a rate")


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests that share the devices.

    path: its file.
    goal: for the workload's classes. `SearchOptions` puts its own here.
    most_requests: simulate at most the first N requests. Default: as many as have 15,000 output tokens, 32 at least.
    options: limits of the scheduler.
    serving: another engine than this package's that will serve, under its own limits.
    transfer_s: prompts are read elsewhere, and a request's cache comes so many seconds later: plan a pool that only
        decodes.

    ValueError: if a value is out of range, or the goal has a percentile without any limit.
    """

    workload: Workload
    path: Path | None = None
    goal: Goal = field(default_factory=Goal)
    most_requests: int | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    serving: "ServingEngine | None" = None
    transfer_s: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "goal", self.goal.under(self.workload.classes))
        if self.transfer_s is not None and not 0 <= self.transfer_s < math.inf:
            raise ValueError(f"transfer_s is {self.transfer_s:g}; expected 0 or more seconds")
        if self.most_requests is not None and self.most_requests < 1:
            raise FieldError("most_requests", self.most_requests, "expected at least 1")

    @classmethod
    def read(cls, workload: Workload | Path | str, **given: Any) -> "Load":
        """The load of a workload, or of its file; `given` is as the fields have it."""
        if isinstance(workload, Workload):
            return cls(workload=workload, **given)
        path = Path(workload)
        return cls(workload=Workload.load(path), path=path if path.is_file() else None, **given)

    def under(self, serving: "ServingEngine | None") -> "Load":
        """The load of an engine that serves; its limits are those of its steps."""
        if serving is None:
            self.check_role()
            return self
        limits = serving.limits
        options = self.options.model_copy(update={"max_running": limits.requests, "prefill_rows": limits.step_tokens})
        return replace(self, serving=serving, options=options)

    def check_role(self) -> None:
        """ValueError for a decode-only pool of this package's engine, which reads the prompts itself."""
        if self.transfer_s is not None and self.serving is None:
            raise FieldError(
                "transfer_ms",
                f"{self.transfer_s * 1e3:g}",
                "this package's engine reads prompts itself: expected an engine that serves, as --engine vllm",
            )

    @cached_property
    def simulated(self) -> Workload:
        """The first requests, as many as are simulated: all of them under an engine that serves."""
        if self.most_requests is None and self.serving is None:
            return self.workload.beginning(most_tokens=_ENOUGH_TOKENS, least=_LEAST_REQUESTS)
        return self.workload.model_copy(update={"requests": self.workload.requests[: self.most_requests]})

    @property
    def basis(self) -> Basis:
        """What a plan says of its workload's file."""
        return Basis(path=str(self.path or ""), sha256=workload_sha256(self.workload, self.path))

    def check_context(self, most_positions: int, model: str) -> None:
        """ValueError, naming the first request that does not fit into a model's context."""
        for number, request in enumerate(self.workload.requests):
            if request.prompt_tokens + request.output_tokens > most_positions:
                raise ValueError(
                    f"requests[{number}].prompt_tokens is {request.prompt_tokens}; with {request.output_tokens} output "
                    f"tokens that is more than the {most_positions} positions of {model}"
                )
