"""A forward of a model on a group of devices, composed of its operations, layer by layer."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from swiftspec.costmodel.constants import CONSTANTS
from swiftspec.costmodel.forward_ops import ForwardOps, Group, OpTime
from swiftspec.costmodel.kernel_latency import Kernels, KernelTime
from swiftspec.costmodel.routing import ASSUMED_ROUTING, Routing
from swiftspec.models.heads import Product
from swiftspec.models.layer_parts import Experts
from swiftspec.models.spec import ModelSpec
from swiftspec.timing.latency import Part, Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Time that an engine adds to a forward's kernels."""

    step_s: float = 0.0  # of every forward: scheduling, launch, sampling
    group_s: float = 0.0  # of every doubling of the group, which waits for its slowest device
    layer_s: float = 0.0  # of every layer
    sparse_layer_s: float = 0.0  # of every layer with experts, in addition
    fp8_layer_s: float = 0.0  # of every layer with weights in fp8, in addition
    beside_device: bool = False  # whether the effects around forwards run beside the device, and add nothing

    @classmethod
    def of(cls, engine: str) -> "Host":
        """Fitted host time of a serving engine, vllm or trtllm; for any other engine, the smaller of these two."""
        step_s = CONSTANTS.get(f"host_{engine}_s", CONSTANTS["host_trtllm_s"])
        return cls(step_s=step_s, group_s=CONSTANTS["host_group_s"])

    def seconds(self, spec: ModelSpec, *, quant: str, degree: int) -> float:
        """Seconds that are added to a forward of these layers."""
        sparse_layers = sum(count for part, count in spec.feed_forwards.items() if isinstance(part, Experts))
        layers = spec.num_layers * self.layer_s + sparse_layers * self.sparse_layer_s
        in_fp8 = spec.num_layers * self.fp8_layer_s if quant == "fp8" else 0.0
        return self.step_s + self.group_s * log2(degree) + max(0.0, layers + in_fp8)


def forward_parts(
    spec: ModelSpec,
    *,
    kernels: Kernels,
    quant: str,
    degree: int,
    rows: int,
    context: int,
    sequences: int = 1,
    collective: str | None = None,
    kv_dtype: str = "bf16",
    answers: int | None = None,
    host: Host | None = None,
    products: Sequence[Product] = (),
    routing: Routing = ASSUMED_ROUTING,
    of_rank: int | None = None,
) -> tuple[Part, ...]:
    """Parts of a forward: equal operations of all layers together, with their seconds.

    Where attention is in data parallel these are the parts of the fullest rank, for which the others wait.

    quant: format of the layers' matrices; head and embeddings are in bf16.
    rows: rows of all sequences together.
    context: tokens of KV of every sequence before this forward. Several rows of a sequence are a short query over them.
    collective: one of `all_reduce_times`; the fastest if not given.
    kv_dtype: bf16 or fp8.
    answers: rows with logits; all if not given.
    host: without one, the parts are the devices' only.
    of_rank: rows of the fullest rank; those of its share of the sequences if not given.
    """
    ranks = spec.attention_ranks
    share = -(-sequences // ranks)
    if of_rank is None:
        of_rank = -(-rows * share // sequences)
    elif of_rank < share:
        share = of_rank
    forward = ForwardOps(
        spec=spec,
        kernels=kernels,
        quant=quant,
        degree=degree // ranks,
        rows=of_rank,
        context=context,
        sequences=share,
        collective=collective,
        kv_dtype=kv_dtype,
        routing=routing,
        group=Group(ranks, rows, sequences),
    )
    timed: list[OpTime] = [
        *forward.layers(),
        *forward.products(products),
        *forward.ends(-(-(answers or rows) // ranks)),
    ]
    if host is not None:
        seconds = host.seconds(spec, quant=quant, degree=degree)
        timed.append(("host", KernelTime(seconds, Provenance.INTERPOLATED), 1))
    sums: dict[tuple[str, Provenance], float] = defaultdict(float)
    for name, (seconds, provenance), count in timed:
        sums[name, provenance] += seconds * count
    return tuple(
        Part(name=name, seconds=seconds, provenance=provenance) for (name, provenance), seconds in sums.items()
    )
