"""Zoo: tenants of one base model, the layers that they share, and the memory that they take. No files here."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from swiftspec.models.spec import ModelSpec

EMBEDDING, HEAD = "embedding", "head"
_LAYERS = "model.layers."


def part_of(name: str) -> str:
    """Part of a model that a weight belongs to: a layer's number, `embedding`, or `head`, the final norm included."""
    if name.startswith(_LAYERS):
        return name.removeprefix(_LAYERS).partition(".")[0]
    return EMBEDDING if name.startswith("model.embed_tokens.") else HEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A tensor of a model. Two are equal if their digests are: those are of dtype, shape and bytes."""

    digest: str
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Low-rank adapter: products of two factors that are added to some matrices of its base.

    Parameters
    ----------
    num_matrices : int
        Matrices that have one.
    rank : int
    num_bytes : int
        Of all factors: r (in + out) numbers for each matrix.
    """

    num_matrices: int
    rank: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A model of the zoo.

    Parameters
    ----------
    name : str
    weights : mapping of str to Weight
        By tensor name. For an adapter those of the base.
    adapter : Adapter or None
    """

    name: str
    weights: Mapping[str, Weight]
    adapter: Adapter | None = None

    @property
    def adapter_bytes(self) -> int:
        return self.adapter.num_bytes if self.adapter else 0

    @property
    def alone_bytes(self) -> int:
        """Memory of a server of this tenant only."""
        return sum(weight.num_bytes for weight in self.weights.values()) + self.adapter_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRun:
    """Contiguous parts that the same tenants hold: a block.

    Parameters
    ----------
    parts : tuple of str
        In the order of the forward.
    tenants : tuple of str
        All that hold equal ones, in the order of the zoo.
    """

    parts: tuple[str, ...]
    tenants: tuple[str, ...]

    def __str__(self) -> str:
        numbers = [part for part in self.parts if part.isdigit()]
        layers = [f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else numbers[0]] if numbers else []
        ends = {name: [name] if name in self.parts else [] for name in (EMBEDDING, HEAD)}
        return ", ".join([*ends[EMBEDDING], *layers, *ends[HEAD]])


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearness:
    """Cosine of a tenant's part, all its weights as one vector, with the base's; and the bytes it has of its own."""

    tenant: str
    part: str
    cosine: float
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Tenants that fit in a memory, the base being one of them.

    Parameters
    ----------
    alone : int
        If each has all its weights: n (whole + KV).
    shared : int
        If equal weights are held once: base + KV + (n - 1)(added + KV).
    """

    alone: int
    shared: int


@dataclass(frozen=True)
class Zoo:
    """Tenants of one base model.

    Parameters
    ----------
    spec : ModelSpec
        Shape of all of them.
    tenants : tuple of Tenant
        At least two, the base first; all have weights of the same names.
    """

    spec: ModelSpec
    tenants: tuple[Tenant, ...]

    def __post_init__(self) -> None:
        if len(self.tenants) < 2:
            raise ValueError(f"tenants are {len(self.tenants)}; expected a base and at least one more")
        names = [tenant.name for tenant in self.tenants]
        if len(set(names)) < len(names):
            raise ValueError(f"tenants are {', '.join(names)}; expected different names")
        for tenant in self.tenants:
            if tenant.weights.keys() != self.base.weights.keys():
                raise ValueError(f"tenant {tenant.name}: its weights have other names than those of {self.base.name}")

    @property
    def base(self) -> Tenant:
        return self.tenants[0]

    @property
    def alone_bytes(self) -> int:
        """Memory if every tenant has a server of its own."""
        return sum(tenant.alone_bytes for tenant in self.tenants)

    @cached_property
    def shared_bytes(self) -> int:
        """Memory if equal weights are held once."""
        weights = sum(weight.num_bytes for _, weight in self._holders)
        return weights + sum(tenant.adapter_bytes for tenant in self.tenants)

    @property
    def mean_alone_bytes(self) -> float:
        return self.alone_bytes / len(self.tenants)

    @property
    def mean_added_bytes(self) -> float:
        """What each tenant after the base adds to it, on average."""
        return (self.shared_bytes - self.base.alone_bytes) / (len(self.tenants) - 1)

    def private_bytes(self, tenant: Tenant) -> int:
        """Memory that no other tenant has a use for."""
        held = self._holders
        own = sum(each.num_bytes for name, each in tenant.weights.items() if held[name, each] == [tenant.name])
        return own + tenant.adapter_bytes

    def runs(self, tenant: Tenant) -> tuple[LayerRun, ...]:
        """The tenant's chain of blocks. A part is shared if all its weights are equal."""
        parts = [(part, self._sharers(tenant, part)) for part in self._parts]
        return tuple(
            LayerRun(parts=tuple(part for part, _ in run), tenants=tenants)
            for tenants, run in groupby(parts, key=lambda each: each[1])
        )

    def differing(self, tenant: Tenant) -> Iterator[str]:
        """Names of weights that are not the base's."""
        return (name for name, weight in tenant.weights.items() if weight != self.base.weights[name])

    def kv_bytes(self, *, context: int, dtype: str) -> int:
        """Keys and values of a request of `context` tokens."""
        return self.spec.kv_bytes_per_token(dtype) * context

    def fitting(self, memory_bytes: float, *, kv_bytes: float) -> Memory:
        """Tenants that fit, as large and as equal as these are on average, with `kv_bytes` for each."""
        rest = memory_bytes - self.base.alone_bytes - kv_bytes
        added = self.mean_added_bytes + kv_bytes
        if added == 0:
            raise ValueError("the tenants add no bytes to their base; any number of them fits")
        return Memory(
            alone=int(memory_bytes // (self.mean_alone_bytes + kv_bytes)),
            shared=0 if rest < 0 else 1 + int(rest // added),
        )

    def shared_if_near(self, nearnesses: tuple[Nearness, ...], *, cosine: float) -> int:
        """Memory if parts at least so near to the base's were taken for equal, which changes outputs."""
        near = {(each.tenant, each.part) for each in nearnesses if each.cosine >= cosine}
        held = {
            (name, self.base.weights[name] if (tenant.name, part_of(name)) in near else weight)
            for tenant in self.tenants
            for name, weight in tenant.weights.items()
        }
        return sum(weight.num_bytes for _, weight in held) + sum(tenant.adapter_bytes for tenant in self.tenants)

    @cached_property
    def _holders(self) -> Mapping[tuple[str, Weight], list[str]]:
        """Tenants that hold a weight, by name and content."""
        holders: dict[tuple[str, Weight], list[str]] = {}
        for tenant in self.tenants:
            for item in tenant.weights.items():
                holders.setdefault(item, []).append(tenant.name)
        return holders

    @cached_property
    def _parts(self) -> Mapping[str, list[str]]:
        """Names of the weights of each part, in the order of the forward."""
        parts: dict[str, list[str]] = {EMBEDDING: [], **{str(layer): [] for layer in range(self.spec.num_layers)}}
        for name in self.base.weights:
            parts.setdefault(part_of(name), []).append(name)
        return parts

    def _sharers(self, tenant: Tenant, part: str) -> tuple[str, ...]:
        names = self._parts[part]
        return tuple(
            other.name for other in self.tenants if all(other.weights[name] == tenant.weights[name] for name in names)
        )
