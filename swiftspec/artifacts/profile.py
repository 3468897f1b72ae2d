"""Profile: measured latencies of one machine and one model pair, with their provenance. No torch here."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from swiftspec.artifacts.routes import ExpertsTouched
from swiftspec.artifacts.served import Served
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.errors import FieldError
from swiftspec.files.document import Document, Facts, ModelRef
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Latency, Part, Provenance
from swiftspec.timing.sharing import Sharing
from swiftspec.timing.step_key import RowFactors, StepKey, StepTable, factor_at
from swiftspec.timing.steps import HostGrid, Latencies, StepGrid
from swiftspec.timing.timeline import COMPUTING, Phase
from swiftspec.timing.warm_up import WarmUpCost

PASSES = 3  # of a whole profile of this machine
MOST_DEVICES = 65536  # more than any plan has
_Seconds = Annotated[float, Field(gt=0, le=1e6)]  # a forward of twelve days is a mistake
_Degree = Annotated[int, Field(ge=1, le=MOST_DEVICES)]


class _Quantiles(Facts):
    quantiles_s: tuple[_Seconds, ...] = Field(min_length=NUM_QUANTILES, max_length=NUM_QUANTILES)
    num_samples: int = Field(ge=1)
    provenance: Provenance

    @field_validator("quantiles_s")
    @classmethod
    def _ascending(cls, quantiles_s: tuple[float, ...]) -> tuple[float, ...]:
        if any(left > right for left, right in pairwise(quantiles_s)):
            raise ValueError("expected seconds in ascending order")
        return quantiles_s

    @property
    def latency(self) -> Latency:
        return Latency(self.quantiles_s, self.provenance)


class StepPoint(_Quantiles):
    """One whole forward of a role's model, from launch to the result on the host.

    degree: devices of the role's group (intra-op threads on CPU). peer_busy: whether the other group computed
    meanwhile. rows: tokens in the forward, including a prefill's prompt length; context: slots of the cache in use
    before it, measured as a prefix of that length. cold: whether the model's weights have left the caches: a draft's,
    since its process did something else before, such as waiting; a target's, since its process ran the draft. ranks:
    processes that divide the group's devices and the model on a CPU; GPUs have one each, and this stays 1. parts:
    operations of a composed step.
    """

    role: Role
    phase: Phase
    degree: _Degree
    peer_busy: bool
    cold: bool = False
    ranks: _Degree = 1
    rows: int = Field(ge=1)
    context: int = Field(ge=0)
    parts: tuple[Part, ...] = ()

    @field_validator("phase")
    @classmethod
    def _forward(cls, phase: Phase) -> Phase:
        if phase not in COMPUTING:
            raise ValueError(f"expected a forward: {', '.join(sorted(COMPUTING))}")
        return phase

    @model_validator(mode="after")
    def _divided(self) -> Self:
        if self.degree % self.ranks:
            raise FieldError("ranks", self.ranks, f"expected a divisor of degree {self.degree}")
        return self

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        total_s, mean_s = sum(part.seconds for part in self.parts), self.latency.mean_s
        if self.parts and not math.isclose(total_s, mean_s, rel_tol=1e-6):
            raise ValueError(f"parts add up to {total_s} s; expected the mean of the quantiles, {mean_s} s")
        return self

    @property
    def table(self) -> StepTable:
        """The table it belongs to: all fields but rows and context."""
        return StepTable(self.role, self.phase, self.degree, self.peer_busy, self.cold, self.ranks)

    @property
    def key(self) -> StepKey:
        """The forward that was measured."""
        return StepKey(
            self.role,
            self.phase,
            self.degree,
            self.rows,
            self.context,
            ranks=self.ranks,
            peer_busy=self.peer_busy,
            cold=self.cold,
        )


class HostPoint(_Quantiles):
    """Host time of a role's process around an effect of this phase, without its forward, at this many rows.

    For `wait` it is the channel's hop: from the end of the peer's send to the message in hand; with features of tokens
    beside it, at the rows of `steps.hop_rows`. For `arrive` it is the
    delay that a message causes to a process that computes when it arrives. policy: by whose program; of several
    policies together if empty.
    """

    phase: Phase
    rows: int = Field(ge=1)
    policy: str = Field(default="", exclude_if=lambda name: not name)


class Collective(Facts):
    """All-reduce in a role's composed steps at a degree, and the cost of the other implementations.

    seconds: of one all-reduce of a verification's (an expansion's) activations, by implementation. ranks: as in
    `StepPoint`.
    """

    role: Role
    degree: int = Field(ge=2, le=MOST_DEVICES)
    ranks: _Degree = 1
    implementation: str
    seconds: dict[str, _Seconds]

    @model_validator(mode="after")
    def _among(self) -> Self:
        if self.implementation not in self.seconds:
            raise ValueError(f"implementation is {self.implementation!r}; expected one of {', '.join(self.seconds)}")
        return self


class Profile(Document):
    """Forward latencies of a model pair on a machine, in seconds.

    Attributes
    ----------
    device : str
        `cpu`, `cuda`, or the name of a device that is not installed here.
    num_devices : int
    target, draft : ModelRef
    steps : tuple of StepPoint
        Latencies of whole forwards, by model, phase, devices, rows and context.
    host : tuple of HostPoint
        Time that a process spends outside its forwards.
    peers_interfere : bool
        Whether forwards of one model may take longer while the other computes, as on shared memory. If not, `steps` are
        those with an idle peer.
    collectives : tuple of Collective
        All-reduces of forwards that were composed.
    sources : tuple of str
        Inputs of composed forwards, with the SHA-256 of files.
    checks : tuple of StepPoint
        Some of the composed forwards, also measured whole for comparison.
    padded_prompts : tuple of Role
        Models whose prompts a CPU pads to one of a few sizes, see `artifacts.steps`.
    others_share : float, optional
        Share of the cores' time that other processes took while this was measured.
    passes : int, optional
        Times that everything was measured on a CPU, each on new processes; fewer where the models are slow.
    sharing : Sharing, optional
        Cost of steps of several sequences. A file without it has no such field.
    warm_up : tuple of WarmUpCost
        Cost of pauses on a CPU. A file without any has no such field.
    feature_bytes : int
        Bytes of the target's hidden states that a head reads for a token; absent from the file for any other draft.
    served : Served, optional
        The server, of a profile that was measured from outside; absent from the file of any other.
    experts_touched : ExpertsTouched, optional
        Of a target with experts, those that verifications needed; absent from the file of any other.
    draft_profile : Profile, optional
        That of the devices that a draft has to itself, where these are of another kind than the target's; absent
        otherwise.

    Examples
    --------
    >>> from swiftspec.policies.effects import Role
    >>> from swiftspec.timing.step_key import StepKey
    >>> from swiftspec.timing.timeline import Phase
    >>> profile = swiftspec.Profile.load("profile.json")
    >>> latency = profile.step(StepKey(Role.TARGET, Phase.VERIFY, degree=1, rows=4, context=128))
    >>> latency.median_s
    0.0...
    """

    schema_name: ClassVar[str] = "swiftspec.profile"
    schema_version: ClassVar[int] = 1

    device: str
    num_devices: _Degree
    target: ModelRef
    draft: ModelRef
    steps: tuple[StepPoint, ...] = Field(min_length=1)
    host: tuple[HostPoint, ...]
    peers_interfere: bool = True
    collectives: tuple[Collective, ...] = ()
    sources: tuple[str, ...] = ()
    checks: tuple[StepPoint, ...] = ()
    padded_prompts: tuple[Role, ...] = tuple(Role)
    others_share: float | None = Field(default=None, ge=0.0, le=1.0)
    passes: int | None = Field(default=None, ge=1, exclude_if=lambda count: count is None)
    sharing: Sharing | None = Field(default=None, exclude_if=lambda sharing: sharing is None)
    warm_up: tuple[WarmUpCost, ...] = Field(default=(), exclude_if=lambda costs: not costs)
    feature_bytes: int = Field(default=0, ge=0, exclude_if=lambda count: not count)
    served: Served | None = Field(default=None, exclude_if=lambda server: server is None)
    experts_touched: ExpertsTouched | None = Field(default=None, exclude_if=lambda touched: touched is None)
    draft_profile: "Profile | None" = Field(default=None, exclude_if=lambda profile: profile is None)

    @model_validator(mode="after")
    def _measured_once(self) -> Self:
        steps = Counter((*s.table, s.rows, s.context) for s in self.steps)
        host = Counter((*filter(None, [point.policy]), point.phase, point.rows) for point in self.host)
        pauses = Counter((cost.role, cost.degree, cost.ranks) for cost in self.warm_up)
        for name, counts in (("steps", steps), ("host", host), ("warm_up", pauses)):
            key, count = counts.most_common(1)[0] if counts else ((), 0)
            if count > 1:
                what = ", ".join(str(part) for part in key)
                raise ValueError(f"{name} holds {count} entries of ({what}); expected one each")
        return self

    def step(self, key: StepKey) -> Latency:
        """Latency of one whole forward of a single sequence, in seconds.

        Bilinear between the measured rows and contexts, flat in context beyond them, linear in rows beyond the last; on
        the GPUs of this machine, whose forwards are padded to the next measured rows, the latency there. An unmeasured
        table with a busy peer equals that with an idle one, and is `assumed` if peers interfere; an unmeasured cold one
        equals the warm one.

        ValueError if nothing was measured for this phase, degree and number of ranks.
        """
        return self.latencies.step(key)

    def retimed(self, factors: Mapping[StepTable, float | RowFactors]) -> Self:
        """The same profile with the steps of these tables scaled by factors, and so what sequences and pauses cost.

        A table without a factor uses that of its warm counterpart, or of the one with the peer in the other state.
        """

        def factor(table: StepTable, rows: int | None = None) -> float:
            warm = table._replace(cold=False)
            alike = (table, warm, warm._replace(peer_busy=not table.peer_busy))
            return next((factor_at(factors[other], rows) for other in alike if other in factors), 1.0)

        def of_rounds(role: Role, degree: int, ranks: int, peer_busy: bool) -> float:
            phase = Phase.EXPAND if role is Role.DRAFT else Phase.VERIFY
            return factor(StepTable(role, phase, degree, peer_busy, ranks=ranks))

        return self.replaced(
            steps=tuple(_stretched(step, factor(step.table, step.rows)) for step in self.steps),
            sharing=self.sharing.scaled(lambda table: of_rounds(*table)) if self.sharing else None,
            warm_up=tuple(
                cost.scaled(of_rounds(cost.role, cost.degree, cost.ranks, peer_busy=False)) for cost in self.warm_up
            ),
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, as pydantic makes it, without the latencies that were computed from the original."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("latencies", None)
        return copied

    @cached_property
    def latencies(self) -> Latencies:
        """The latencies alone."""
        steps: dict[StepTable, list[tuple[int, int, Latency]]] = {}
        for step in self.steps:
            latency = Latency(step.quantiles_s, step.provenance, step.parts)
            steps.setdefault(step.table, []).append((step.rows, step.context, latency))
        host: dict[tuple[str, Phase], dict[int, Latency]] = {}
        for point in self.host:
            host.setdefault((point.policy, point.phase), {})[point.rows] = point.latency
        share = self.sharing.host_share if self.sharing else None

        def grid(table: StepTable) -> StepGrid:
            is_prefill = table.phase is Phase.PREFILL
            return StepGrid(
                steps[table],
                # A GPU of this machine replays graphs of fixed rows, and this package's CPU decoder pads prompts.
                in_capture_sizes=self.device == "cuda" and not is_prefill,
                in_chunks=self.device == "cpu" and is_prefill and table.role in self.padded_prompts,
            )

        return Latencies(
            steps={table: grid(table) for table in steps},
            host={key: HostGrid(points) for key, points in host.items()},
            peers_interfere=self.peers_interfere,
            sharing={cost.table: cost for cost in self.sharing.costs} if self.sharing else {},
            host_share=SWIFTSPEC.host_share if share is None else share,
            warm_up={(cost.role, cost.degree, cost.ranks): cost for cost in self.warm_up},
            apart=self.draft_profile.latencies if self.draft_profile else None,
        )


def _stretched(step: StepPoint, factor: float) -> StepPoint:
    parts = tuple(part.model_copy(update={"seconds": part.seconds * factor}) for part in step.parts)
    return step.model_copy(update={"quantiles_s": tuple(value * factor for value in step.quantiles_s), "parts": parts})
