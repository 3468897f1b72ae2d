"""A load to plan for: the requests, their latency limits, and how many of them are simulated."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.artifacts.load_goal import LoadGoal, LoadOptions
from swiftspec.artifacts.under_load import workload_sha256
from swiftspec.artifacts.workload import Workload

if TYPE_CHECKING:
    from swiftspec.planner.under_load.serving_engine import ServingEngine

__all__ = ["Load"]

# Simulated by default: so many output tokens that two dozen candidates take about a minute, but some requests at least.
_ENOUGH_TOKENS = 15_000
_LEAST_REQUESTS = 32


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests that share the devices, and the goal of a plan for them: the highest goodput.

    Parameters
    ----------
    workload : Workload
    path : Path, optional
        Its file.
    ttft_s, tpot_s : float, optional
        Highest seconds until the first token, and per output token after it, for all requests. Limits that are not
        given are those of the workload's classes. Without any limit, the lowest mean end-to-end time is the goal.
    percentile : float, optional
        A candidate is acceptable only if this percentage of all requests keep their limits.
    most_requests : int, optional
        Simulate at most the first N requests. Default: as many as have 15,000 output tokens, 32 at least.
    options : LoadOptions
        Limits of the scheduler.
    serving : ServingEngine, optional
        Another engine than this package's that will serve, under its own limits.
    transfer_s : float, optional
        Prompts are read elsewhere, and a request's cache comes so many seconds later: plan a pool that only decodes.

    Raises
    ------
    ValueError
        If a value is out of range, or there is a percentile without any limit.
    """

    workload: Workload
    path: Path | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    percentile: float | None = None
    most_requests: int | None = None
    options: LoadOptions = field(default_factory=LoadOptions)
    serving: "ServingEngine | None" = None
    transfer_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value:g}; expected a positive number of seconds")
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise ValueError(f"percentile is {self.percentile:g}; expected more than 0, and at most 100")
        if self.transfer_s is not None and not 0 <= self.transfer_s < math.inf:
            raise ValueError(f"transfer_s is {self.transfer_s:g}; expected 0 or more seconds")
        if self.most_requests is not None and self.most_requests < 1:
            raise ValueError(f"most_requests is {self.most_requests}; expected at least 1")
        _ = self.goal  # checks the percentile

    @classmethod
    def read(
        cls,
        workload: Workload | Path | str | None,
        *,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        percentile: float | None = None,
        most_requests: int | None = None,
        options: LoadOptions | None = None,
        transfer_s: float | None = None,
    ) -> "Load | None":
        """The load of a workload, or of its file; None without one. ValueError for values that need one."""
        if workload is None:
            given = {"ttft_s": ttft_s, "tpot_s": tpot_s, "percentile": percentile, "most_requests": most_requests}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"{name} is {value:g}; it needs a workload")
            return None
        path = None if isinstance(workload, Workload) else Path(workload)
        return cls(
            workload=workload if isinstance(workload, Workload) else Workload.load(workload),
            path=path if path is not None and path.is_file() else None,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            percentile=percentile,
            most_requests=most_requests,
            options=options or LoadOptions(),
            transfer_s=transfer_s,
        )

    def under(self, serving: "ServingEngine | None") -> "Load":
        """The load of an engine that serves; its limits are those of its steps."""
        if serving is None:
            self.check_role()
            return self
        limits = serving.engine.limits(serving.device, serving.settings)
        options = self.options.model_copy(update={"max_running": limits.requests, "prefill_rows": limits.step_tokens})
        return replace(self, serving=serving, options=options)

    def check_role(self) -> None:
        """ValueError for a decode-only pool of this package's engine, which reads the prompts itself."""
        if self.transfer_s is not None and self.serving is None:
            raise ValueError(
                "role is decode; this package's engine reads prompts itself: expected an engine that serves, as "
                "--engine vllm, and no fleet"
            )

    @cached_property
    def goal(self) -> LoadGoal:
        """The limits that count."""
        return LoadGoal.of(self.workload.classes, ttft_s=self.ttft_s, tpot_s=self.tpot_s, percentile=self.percentile)

    @cached_property
    def simulated(self) -> Workload:
        """The first requests, as many as are simulated: all of them under an engine that serves."""
        return self.workload.model_copy(update={"requests": self.workload.requests[: self._num_simulated]})

    @property
    def _num_simulated(self) -> int:
        requests = self.workload.requests
        if self.most_requests is not None:
            return min(self.most_requests, len(requests))
        if self.serving is not None:
            return len(requests)
        tokens = accumulate(request.output_tokens for request in requests)
        return min(len(requests), max(_LEAST_REQUESTS, sum(sofar <= _ENOUGH_TOKENS for sofar in tokens)))

    @property
    def sha256(self) -> str:
        """SHA-256 of the workload's file."""
        return workload_sha256(self.workload, self.path)

    @property
    def longest_context(self) -> int:
        """Tokens of the longest request, its output included."""
        return max(request.prompt_tokens + request.output_tokens for request in self.workload.requests)

    def check_context(self, most_positions: int, model: str) -> None:
        """ValueError, naming the first request that does not fit into a model's context."""
        for number, request in enumerate(self.workload.requests):
            if request.prompt_tokens + request.output_tokens > most_positions:
                raise ValueError(
                    f"requests[{number}].prompt_tokens is {request.prompt_tokens}; with {request.output_tokens} output "
                    f"tokens that is more than the {most_positions} positions of {model}"
                )
