"""Requests of tenants, and what became of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swiftspec.artifacts.load_metrics import Percentiles
from swiftspec.artifacts.workload import Workload
from swiftspec.studies.blockllm.queueing import Cache


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRequest:
    """A request of a tenant.

    Parameters
    ----------
    tenant : str
    arrival_s : float
    prompt_tokens, output_tokens : int
        The prompt passes the chain at once and gives the first token.
    cached_tokens : int
        Tokens before the prompt whose KV is held, such as those of a conversation.
    cached_at : str
        Group that holds it.
    """

    tenant: str
    arrival_s: float = 0.0
    prompt_tokens: int = 1
    output_tokens: int = 1
    cached_tokens: int = 0
    cached_at: str = ""


def requests_of(workload: Workload, *, rate: float | None = None) -> list[TenantRequest]:
    """Requests of a workload whose classes are the tenants, at another rate if one is given.

    ValueError for a closed loop, whose arrivals are the ends of other requests.
    """
    if workload.is_closed:
        raise ValueError(f"arrivals are {workload.arrivals}; expected an open process")
    workload.check_arrivals("a simulation of tenants")
    scaled = workload if rate is None else workload.scaled(rate=rate)
    return [
        TenantRequest(
            tenant=request.class_name,
            arrival_s=request.arrival_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
        )
        for request in scaled.requests
    ]


@dataclass(slots=True, kw_only=True)
class ServedTenant:
    """A request, when each of its tokens came, and what was done with its KV at blocks that had some."""

    request: TenantRequest
    tokens_s: list[float] = field(default_factory=list)
    choices: list[Cache] = field(default_factory=list)

    @property
    def ended_s(self) -> float:
        return self.tokens_s[-1]

    @property
    def e2e_s(self) -> float:
        """Request to last token."""
        return self.ended_s - self.request.arrival_s

    @property
    def ttft_s(self) -> float:
        """Request to first token."""
        return self.tokens_s[0] - self.request.arrival_s


@dataclass(slots=True, kw_only=True)
class GroupUse:
    """Work of a device group."""

    busy_s: float = 0.0
    num_steps: int = 0
    num_rows: int = 0

    def add(self, step_s: float, rows: int) -> None:
        self.busy_s += step_s
        self.num_steps += 1
        self.num_rows += rows


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """Requests that were served, in the order of their arrival.

    Parameters
    ----------
    served : sequence of ServedTenant
    groups : mapping of str to GroupUse
    choices : mapping of Cache to int
        What was done with the KV, how often.
    end_s : float
        Time of the last token.
    """

    served: Sequence[ServedTenant]
    groups: Mapping[str, GroupUse]
    choices: Mapping[Cache, int]
    end_s: float

    @property
    def e2e_s(self) -> Percentiles:
        """From request to last token."""
        return Percentiles.of(each.e2e_s for each in self.served)

    @property
    def utilisation(self) -> float:
        """Busy share of all groups, until the last token."""
        return sum(use.busy_s for use in self.groups.values()) / (len(self.groups) * self.end_s)

    @property
    def tokens_per_s(self) -> float:
        return sum(len(each.tokens_s) for each in self.served) / self.end_s

    @property
    def rows_per_step(self) -> float:
        """Rows that share a step, on average."""
        steps = sum(use.num_steps for use in self.groups.values())
        return sum(use.num_rows for use in self.groups.values()) / steps
