"""Forwards of a role's model on hardware that is not installed here: every size, at every TP degree."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from swiftspec.artifacts.profile import Collective, HostPoint, StepPoint
from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.costmodel.forward import Host, forward_parts
from swiftspec.costmodel.forward_ops import EXPERTS, all_reduce_times, fastest
from swiftspec.costmodel.kernel_latency import Kernels, UnknownShapeError
from swiftspec.costmodel.published import PublishedForwards
from swiftspec.costmodel.routing import Routing
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.errors import FieldError
from swiftspec.models.layer_parts import halves
from swiftspec.models.published import Named
from swiftspec.models.sharding import sharded
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.models.spec import ModelSpec
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import NUM_QUANTILES, Part, Provenance, weakest
from swiftspec.timing.sharing import SharingCost
from swiftspec.timing.steps import hop_rows
from swiftspec.timing.timeline import Phase

# A request's verification has at most 64 rows; more are those of many requests, which follow no straight line.
ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 96, 128, 192, 256, 384, 512)
PROMPTS = (16, 128, 1024)
# Sequences of one row each whose experts say what a further sequence adds. The true sum bends: with 256 experts, 8 of
# them active, and c = 0.57 a line through 48 sequences misses those touched by -15 % at 8 and by +8 % at 64.
_MANY = 48
USUAL_ROWS = 8  # rows of a typical verification or expansion, for which the collective is chosen
_BESIDE_S = 1e-9  # of an effect that runs beside the device: nothing, but a profile's times are above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleModel:
    """The model of a role, as its forwards are composed."""

    model: Named
    quant: str  # format of its weights
    # Time that the engine adds to every forward; that of the leanest engine with known figures if not given
    host: Host = field(default_factory=lambda: Host.of("trtllm"))
    # Tokens that its cache keeps, so that a forward behind more costs what one behind these does; all of them if not
    # given. Its prefill reads the whole prompt.
    kv_budget: int | None = None
    # Bytes of a token's features, if a draft reads any. With devices of its own it gets them over a device's links.
    feature_bytes: int = 0
    round_s: float = 0.0  # what a forward that verifies drafted rows takes longer, by the engine
    kv_dtype: str = "bf16"  # format of its keys and values, bf16 or fp8


def priced_degrees(role: Role, model: Named, *, kernels: Kernels, quant: str, degrees: Iterable[int]) -> Sequence[int]:
    """Degrees that can hold a model and whose forwards can be priced. ValueError, one sentence, if there are none."""
    if not isinstance(model.spec, SparseSpec):
        return list(degrees)
    priced: list[int] = []
    objections: list[str] = []
    unknown: list[str] = []
    for degree in degrees:
        if (objection := model.spec.objection(degree)) is not None:
            objections.append(objection)
            continue
        try:
            forward_parts(model.spec, kernels=kernels, quant=quant, degree=degree, rows=1, context=1)
            priced.append(degree)
        except UnknownShapeError as error:
            unknown.append(str(error))
    if not priced:
        raise FieldError(role, model.name, (unknown or objections)[-1])
    return priced


def chosen_collective(
    role: Role,
    spec: ModelSpec,
    *,
    kernels: Kernels,
    degree: int,
    published: PublishedForwards | None,
    named: str | None,
) -> Collective | None:
    degree //= spec.attention_ranks  # of each rank: the all-reduces are its own
    if degree == 1:
        return None
    if published is not None:
        # Other implementations were not measured inside these forwards: timed alone they would look faster.
        own = {published.collective: published.all_reduce_s(spec, degree=degree, rows=USUAL_ROWS)}
        return Collective(role=role, degree=degree, implementation=published.collective, seconds=own)
    times = all_reduce_times(kernels, num_bytes=USUAL_ROWS * spec.hidden_size * 2, degree=degree)
    if named is not None and named not in times:
        raise ValueError(f"collective is {named!r}; expected {' or '.join(times)} over {degree} {kernels.device.name}")
    seconds = {name: time.seconds for name, time in times.items()}
    return Collective(role=role, degree=degree, implementation=named or fastest(times), seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup:
    """A role's model on a number of devices."""

    role: Role
    model: RoleModel
    kernels: Kernels
    degree: int
    collective: str | None
    published: PublishedForwards | None
    routing: Routing

    @property
    def spec(self) -> ModelSpec:
        return self.model.model.spec

    def steps(self, max_context: int, *, most_cached: int) -> Iterator[StepPoint]:
        """Prefills, and forwards that read at most `most_cached` tokens of their context."""
        for rows in sorted({*PROMPTS, max_context}):
            # A prompt is not a verification: the fastest collective for its size, and logits of its last row only.
            parts = self._parts(self.spec, rows, context=0, answers=1)
            yield self._point(Phase.PREFILL, rows, 0, parts)
        # Denser where they are short: attention grows in proportion, and is linear between them.
        contexts = {min(64, max_context), max(1, max_context // 16), max(1, max_context // 4), max_context}
        for context in sorted({*contexts, most_cached}):
            for rows in ROWS:
                for phase, parts in self._forwards(rows, min(context, most_cached)):
                    yield self._point(phase, rows, context, parts)

    def further_sequence(self) -> SharingCost:
        """Cost of a further sequence: its KV cache, read once for all of its rows, at the memory's bandwidth.

        Forwards of several sequences and of one with equally many rows differ in their attention, and in the experts
        that they touch. This leaves out the engine's own time for a sequence (scheduling, block tables, sampling) and
        the imbalance of sequences of different lengths, which would add to the cost; and that the attention of one
        short sequence does not fill a device, and that of many rows computes for longer than it reads, which both hide
        some of it. In the op tables of an H100 a further sequence of 2048 slots of a 70B model costs 1.2 times as much
        on one device, and half as much on each of four.
        """
        # Ranks of attention in data parallel read the caches of their own requests at the same time.
        slot_bytes = sharded(self.spec, self.degree).kv_bytes_per_token(self.model.kv_dtype) / self.spec.attention_ranks
        return SharingCost(
            role=self.role,
            degree=self.degree,
            peer_busy=False,
            sequence_s=self._further_experts_s(),
            slot_s=slot_bytes / (self.kernels.device.memory_bandwidth_Bps * CONSTANTS["bandwidth_share"]),
            most_slots=self.model.kv_budget,
            provenance=Provenance.COMPOSED,
        )

    def _further_experts_s(self) -> float:
        """Seconds of the experts that a further sequence needs: its rows agree with each other only."""
        if self.spec.experts is None:
            return 0.0
        apart_s, together_s = (
            sum(
                part.seconds
                for part in self._parts(self.spec, _MANY, context=1, sequences=number)
                if part.name == EXPERTS
            )
            for number in (_MANY, 1)
        )
        return max(0.0, (apart_s - together_s) / (_MANY - 1))

    def _forwards(self, rows: int, context: int) -> Iterator[tuple[Phase, tuple[Part, ...]]]:
        whole = self._whole(self.spec, rows, context)
        if self.role is Role.DRAFT:
            yield Phase.EXPAND, whole
            yield Phase.FUZZY, whole  # the engine computes a group's layers one after another, on GPUs too
            return
        yield Phase.VERIFY, whole
        for phase, layers in zip((Phase.EXIT, Phase.FINISH), halves(range(self.spec.num_layers)), strict=True):
            half = self.spec.of_layers(layers[0], layers[-1] + 1) if layers else self.spec.one_layer()
            yield phase, self._whole(half, rows, context)

    def _whole(self, spec: ModelSpec, rows: int, context: int) -> tuple[Part, ...]:
        if self.published is not None:
            return self.published.parts(spec, degree=self.degree, rows=rows, context=context)
        return self._parts(spec, rows, context=context, collective=self.collective)

    def _parts(self, spec: ModelSpec, rows: int, **forward: Any) -> tuple[Part, ...]:
        """Parts of a forward. forward: as of `forward_parts`."""
        host = self.model.host
        if self.model.round_s and rows > 1 and "answers" not in forward:
            host = replace(host, step_s=host.step_s + self.model.round_s)
        return forward_parts(
            spec,
            kernels=self.kernels,
            quant=self.model.quant,
            degree=self.degree,
            rows=rows,
            host=host,
            kv_dtype=self.model.kv_dtype,
            products=self.model.model.products,
            routing=self.routing,
            **forward,
        )

    def _point(self, phase: Phase, rows: int, context: int, parts: Sequence[Part]) -> StepPoint:
        seconds = sum(part.seconds for part in parts)
        return StepPoint(
            role=self.role,
            phase=phase,
            degree=self.degree,
            peer_busy=False,
            rows=rows,
            context=context,
            quantiles_s=(seconds,) * NUM_QUANTILES,
            num_samples=1,
            provenance=weakest(part.provenance for part in parts),
            parts=tuple(parts),
        )


def host_points(feature_s: float, *, beside_device: bool) -> Iterable[HostPoint]:
    """Host time around effects; next to none beside the device. feature_s: what a token's features add to a hop."""
    many = PROMPTS[-1]
    usual = {Phase(name): seconds for name, seconds in SWIFTSPEC.effects_s.items()}
    own = dict.fromkeys(usual, _BESIDE_S) if beside_device else usual
    hops = [(Phase.WAIT, hop_rows(many), usual[Phase.WAIT] + many * feature_s)] if feature_s else []
    for phase, rows, seconds in (*((phase, 1, seconds) for phase, seconds in own.items()), *hops):
        yield HostPoint(
            phase=phase,
            rows=rows,
            quantiles_s=(seconds,) * NUM_QUANTILES,
            num_samples=1,
            provenance=Provenance.ASSUMED,
        )
