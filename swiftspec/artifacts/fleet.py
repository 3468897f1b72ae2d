"""Fleet section of a plan: kinds of replicas at several loads, how many of them a load needs, and who pays when."""

from enum import StrEnum
from itertools import takewhile
from typing import Annotated, Self

from pydantic import Field, model_validator

from swiftspec.artifacts.distributions import Process
from swiftspec.artifacts.goal import Goal, cost_per_million
from swiftspec.artifacts.load_options import LoadOptions
from swiftspec.files.document import Basis, Facts, Share
from swiftspec.policies import Layout, policy_class

_Seconds = Annotated[float, Field(ge=0)]
_Rate = Annotated[float, Field(gt=0)]


class Drafting(StrEnum):
    """Where a kind of replica drafts."""

    NOWHERE = "no draft"
    COLOCATED = "co-located draft"
    OWN = "draft on its own devices"
    POOL = "draft pool"


class LoadPoint(Facts):
    """A kind of replica at a load, without the first requests, which found it idle, and the last.

    rate: requests per second of one replica, or its clients in a closed loop.
    num_requests: requests that were counted.
    attained: share of these that kept their limits.
    attainment: the same of each class.
    user_tokens_per_s: tokens per second that a user sees after the first one: 1 / mean TPOT.
    tokens_per_s: output tokens per second of one replica.
    ttft_s, ttft_p95_s, tpot_s, tpot_p95_s, e2e_s: means over requests, and 95th percentiles.
    mean_batch, busy_fraction: requests per step of a target, by time, and the share of the time in which it computed.
    keeps: whether enough requests kept their limits.
    keeps_up: whether the load can be sustained: tokens are committed as fast as they are asked for, and 95 % of the
        requests wait for admission less than half of their time.
    """

    rate: _Rate
    num_requests: int = Field(ge=1)
    attained: Share
    attainment: dict[str, Share]
    user_tokens_per_s: _Rate
    tokens_per_s: _Rate
    ttft_s: _Seconds
    ttft_p95_s: _Seconds
    tpot_s: _Seconds
    tpot_p95_s: _Seconds
    e2e_s: _Seconds
    mean_batch: float = Field(ge=0)
    busy_fraction: Share
    keeps: bool
    keeps_up: bool


class BreakEven(Facts):
    """Loads at which a kind of replica is the better choice, in requests per second or clients, by device.

    plain_up_to: users are served faster than by plain decoding on as many devices up to this load; None if they never
    are. is_open: whether that was so up to the highest load that both can serve. best_from, best_to: where no other
    kind is as fast; None if there is always one.
    """

    plain_up_to: float | None = None
    is_open: bool = False
    best_from: float | None = None
    best_to: float | None = None


class ReplicaKind(Facts):
    """A kind of replica: policy, shape and devices, and how it does at several loads.

    candidate: `swiftspec 4+1 (verify_rows=16)`.
    num_devices: devices of one; of a pool all devices of its targets and drafts.
    num_targets: targets; several in a draft pool.
    num_drafts: draft groups that the targets share; None without a pool.
    control: control that decides how much is drafted; none if empty.
    tokens_per_s: speed of a request that has a replica to itself.
    num_blocks: cache blocks of each target that its devices have memory for; None if that is not known.
    points: by ascending load.
    num_replicas: as many serve the whole load within its limits; None if no number of them does.
    is_fewest: whether one less was simulated, and is too few.
    """

    policy: str
    split: str
    candidate: str
    num_devices: int = Field(ge=1)
    num_targets: int = Field(default=1, ge=1)
    num_drafts: int | None = Field(default=None, ge=1)
    control: str = ""
    tokens_per_s: float = Field(gt=0)
    num_blocks: int | None = Field(default=None, ge=1)
    points: tuple[LoadPoint, ...] = Field(min_length=1)
    num_replicas: int | None = Field(default=None, ge=1)
    is_fewest: bool = False
    break_even: BreakEven = BreakEven()

    @property
    def drafting(self) -> Drafting:
        if self.num_drafts is not None:
            return Drafting.POOL
        layouts = {
            Layout.TARGET_ONLY: Drafting.NOWHERE,
            Layout.COLOCATED: Drafting.COLOCATED,
            Layout.DISAGGREGATED: Drafting.OWN,
        }
        return layouts[policy_class(self.policy).layout]

    @property
    def is_plain(self) -> bool:
        return self.policy == "autoregressive"

    @property
    def name(self) -> str:
        """`swiftspec 4+1`; of a pool `swiftspec 4x4+1`: four targets of four devices share one draft."""
        if self.num_drafts is None:
            return f"{self.policy} {self.split}"
        target, _, draft = self.split.partition("+")
        drafts = draft if self.num_drafts == 1 else f"{self.num_drafts}x{draft}"
        return f"{self.policy} {self.num_targets}x{target}+{drafts} (pool)"

    @property
    def within(self) -> tuple[LoadPoint, ...]:
        """Points up to the first one that does not keep the limits: a higher one that does has been lucky."""
        return tuple(takewhile(lambda point: point.keeps, self.points))

    @property
    def capacity(self) -> float:
        """Highest simulated load of one replica within the limits, in the fleet's unit; 0 if there is none."""
        return max((point.rate for point in self.within), default=0.0)

    @property
    def total_devices(self) -> int | None:
        """Devices of the fewest replicas that serve the load."""
        return None if self.num_replicas is None else self.num_replicas * self.num_devices


class DraftLength(Facts):
    """The best number of draft tokens of a serial chain for a batch.

    batch: requests in a step. num_draft_tokens: 0 where decoding without a draft is faster. tokens_per_s,
    plain_tokens_per_s: output tokens per second of the whole batch, with so many and with none.
    """

    batch: int = Field(ge=1)
    num_draft_tokens: int = Field(ge=0)
    tokens_per_s: float = Field(gt=0)
    plain_tokens_per_s: float = Field(gt=0)


class Fleet(Facts):
    """A load, and the replicas of a plan's choice that serve it.

    workload: the whole load; the plan's `under_load` is for one replica's share of it.
    rate: requests per second, or clients of a closed loop.
    prompt_tokens, output_tokens: means over requests.
    most_devices: devices that there are.
    router: rule by which requests are given to replicas.
    price_per_hour: of one device.
    kinds: those that were simulated at several loads, the chosen one first.
    num_replicas: replicas of the first kind.
    is_enough: whether they serve the load within its limits. If no fleet of the given devices does, the one with the
        highest goodput is chosen.
    point: one of these replicas at its share of the load.
    draft_lengths: of serial chains on the devices of a replica of this kind.
    """

    workload: Basis
    arrivals: str
    rate: _Rate
    num_requests: int = Field(ge=1)
    prompt_tokens: float = Field(gt=0)
    output_tokens: float = Field(gt=0)
    most_devices: int = Field(ge=1)
    router: str
    goal: Goal
    options: LoadOptions
    price_per_hour: float | None = Field(default=None, gt=0)
    kinds: tuple[ReplicaKind, ...] = Field(min_length=1)
    num_replicas: int = Field(ge=1)
    is_enough: bool
    point: LoadPoint
    draft_lengths: tuple[DraftLength, ...] = ()
    num_simulations: int = Field(ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.chosen.num_drafts is not None:
            raise ValueError("kinds begins with a draft pool, which the engine cannot run")
        if self.num_devices > self.most_devices:
            raise ValueError(f"num_replicas is {self.num_replicas}; there are {self.most_devices} devices")
        return self

    @property
    def unit(self) -> str:
        """Of loads: `requests/s`, or `clients` of a closed loop."""
        return "clients" if self.arrivals.startswith(Process.CLOSED) else "requests/s"

    @property
    def chosen(self) -> ReplicaKind:
        """The kind that the plan runs."""
        return self.kinds[0]

    @property
    def num_devices(self) -> int:
        """Devices of all replicas."""
        return self.num_replicas * self.chosen.num_devices

    @property
    def tokens_per_s(self) -> float:
        """Output tokens per second of all replicas."""
        return self.num_replicas * self.point.tokens_per_s

    def cost(self, num_devices: int, tokens_per_s: float) -> float | None:
        """Price of so many devices for the time of a million output tokens; None without a price."""
        price = self.price_per_hour
        return None if price is None else cost_per_million(price, num_devices, tokens_per_s)

    @property
    def front(self) -> tuple[tuple[ReplicaKind, LoadPoint], ...]:
        """Kinds at loads that no other one beats both in a user's speed and in tokens/s per device, slowest first.

        Within the limits.
        """
        found = [(kind, point) for kind in self.kinds for point in kind.within]
        found.sort(key=lambda each: (-each[1].user_tokens_per_s, -each[1].tokens_per_s / each[0].num_devices))
        front: list[tuple[ReplicaKind, LoadPoint]] = []
        most = 0.0
        for kind, point in found:
            if (per_device := point.tokens_per_s / kind.num_devices) > most:
                front.append((kind, point))
                most = per_device
        return tuple(reversed(front))
