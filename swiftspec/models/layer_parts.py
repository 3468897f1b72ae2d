"""Parts of a decoder layer other than dense ones: how it mixes tokens, and what it feeds their hidden states through.

Sizes are numbers of values. Each part says how many weights, cached values and state it has, and what one of several
devices holds of it. Sources: multi-head latent attention and routed experts, DeepSeek-V3 (arXiv 2412.19437); its sparse
attention, DeepSeek-V3.2; the gated delta rule, arXiv 2412.06464; Kimi delta attention, arXiv 2510.26692.

Layers also come in groups, for layer-parallel forwards, and in halves, for early exits.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
_LAYERS_PER_GROUP = 4  # EasySpec's choice (arXiv 2502.02493): with more, the layers' inputs differ too much
_ALIGNMENT = 16  # columns: the smallest tile of a tensor-core product


class _Part:
    """What a part has that says no more: weights of its matrices, and nothing that is kept of a token or a sequence."""

    __slots__ = ()

    @property
    def kv_values(self) -> int:
        """Cached values per token."""
        return 0

    @property
    def window(self) -> int:
        """Latest tokens that it reads; 0 for all."""
        return 0

    @property
    def state_values(self) -> int:
        """Values of a state that does not grow."""
        return 0

    def matrices(self, hidden_size: int) -> dict[str, int]:
        """Weights of its matrices, by their names in a checkpoint."""
        raise NotImplementedError

    def num_parameters(self, hidden_size: int) -> int:
        """Weights of all its matrices."""
        return sum(self.matrices(hidden_size).values())


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupedAttention(_Part):
    """Attention with key/value heads of their own, as in dense models.

    is_gated: whether a product as wide as the queries gates its output.
    norms_heads_together: whether queries and keys are normed over all their heads at once, so that devices have to add
        their squares.
    takes_keys: whether its values are the keys before their rotation, without a product of their own.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int = 0
    is_gated: bool = False
    norms_heads_together: bool = False
    takes_keys: bool = False

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_values(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim

    def matrices(self, hidden_size: int) -> dict[str, int]:
        keys = hidden_size * self.num_kv_heads * self.head_dim
        queries = hidden_size * self.query_size
        values = {} if self.takes_keys else {"v_proj": keys}
        return {"q_proj": queries * (1 + self.is_gated), "k_proj": keys, **values, "o_proj": queries}

    def fits(self, degree: int) -> bool:
        """Whether `degree` devices can divide it into whole heads."""
        whole_kv_heads = self.num_kv_heads % degree == 0 or degree % self.num_kv_heads == 0
        return whole_kv_heads and not self.num_heads % degree

    def divided(self, degree: int) -> "GroupedAttention":
        return dataclasses.replace(
            self, num_heads=self.num_heads // degree, num_kv_heads=max(1, self.num_kv_heads // degree)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexer:
    """Selection of the tokens that sparse attention reads: the `num_tokens` with the highest scores.

    is_shared: whether it is that of an earlier layer, so that this one has no weights and keys of its own for it.
    """

    num_heads: int
    head_dim: int
    num_tokens: int
    is_shared: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention(_Part):
    """Multi-head latent attention: one compressed vector per token is cached, for all heads.

    query_rank, kv_rank: widths of the compressed queries, 0 where they are not compressed, and of the compressed keys
    and values. plain_dim, rotary_dim, value_dim: of a head: parts of its keys without and with position, and its
    values.
    """

    num_heads: int
    query_rank: int
    kv_rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int
    indexer: Indexer | None = None

    @property
    def query_size(self) -> int:
        return self.num_heads * (self.plain_dim + self.rotary_dim)

    @property
    def kv_values(self) -> int:
        """Cached values per token; every device holds all of them."""
        keys = self.indexer.head_dim if self.indexer and not self.indexer.is_shared else 0
        return self.kv_rank + self.rotary_dim + keys

    def matrices(self, hidden_size: int) -> dict[str, int]:
        if self.query_rank:
            queries = {"q_a_proj": hidden_size * self.query_rank, "q_b_proj": self.query_rank * self.query_size}
        else:
            queries = {"q_proj": hidden_size * self.query_size}
        found = queries | {
            "kv_a_proj_with_mqa": hidden_size * (self.kv_rank + self.rotary_dim),
            "kv_b_proj": self.kv_rank * self.num_heads * (self.plain_dim + self.value_dim),
            "o_proj": hidden_size * self.num_heads * self.value_dim,
        }
        if self.indexer and not self.indexer.is_shared:
            heads, width = self.indexer.num_heads, self.indexer.head_dim
            found["indexer.wq_b"] = self.query_rank * heads * width
            found["indexer.wk"] = hidden_size * width
            found["indexer.weights_proj"] = hidden_size * heads
        return found

    def fits(self, degree: int) -> bool:
        return not self.num_heads % degree

    def divided(self, degree: int) -> "LatentAttention":
        return dataclasses.replace(self, num_heads=self.num_heads // degree)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearAttention(_Part):
    """A recurrence over a state of constant size: gated delta net, Kimi delta attention.

    kind: gdn or kda. convolution: tokens that its short convolution reads.
    """

    kind: str
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    convolution: int

    @property
    def mixed_size(self) -> int:
        """Width of queries, keys and values together, which the convolution reads."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * self.value_dim

    @property
    def query_size(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def state_values(self) -> int:
        """Values of one state, of which there is one for every verified row: a rejected row cannot be cut out of it."""
        return self.num_value_heads * self.key_dim * self.value_dim + self.mixed_size * (self.convolution - 1)

    def matrices(self, hidden_size: int) -> dict[str, int]:
        """Weights of its matrices, by their names in Qwen3.5's checkpoints."""
        gates = 2 * self.num_value_heads
        if self.kind == "kda":  # a decay for every channel of the keys
            gates = self.num_key_heads * self.key_dim + self.num_value_heads
        return {
            "in_proj_qkv": hidden_size * self.mixed_size,
            "in_proj_z": hidden_size * self.query_size,
            "in_proj_ba": hidden_size * gates,
            "conv1d": self.mixed_size * self.convolution,
            "out_proj": hidden_size * self.query_size,
        }

    def fits(self, degree: int) -> bool:
        return not self.num_key_heads % degree and not self.num_value_heads % degree

    def divided(self, degree: int) -> "LinearAttention":
        return dataclasses.replace(
            self, num_key_heads=self.num_key_heads // degree, num_value_heads=self.num_value_heads // degree
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseNetwork(_Part):
    """Gated feed-forward network of this width, as in dense models."""

    size: int

    def matrices(self, hidden_size: int) -> dict[str, int]:
        return dict.fromkeys(("gate_proj", "up_proj", "down_proj"), hidden_size * self.size)

    def fits(self, degree: int) -> bool:
        return not self.size % degree

    def divided(self, degree: int) -> "DenseNetwork":
        return DenseNetwork(size=padded_columns(self.size, degree))


@dataclass(frozen=True, kw_only=True, slots=True)
class Experts:
    """Routed experts, of which each token is computed by a few, and shared ones.

    num_experts, num_active: routed experts, and those that compute one token.
    size: width of a routed expert's network.
    shared_size: width of all shared experts together; 0 without.
    latent_size: width of the hidden states that routed experts read, where the model's are projected first; 0
        elsewhere.
    is_normalised: whether the weights of a token's experts add up to one.
    is_divided_whole: whether several devices hold whole experts each (expert parallelism), or a part of every one's
        width.
    num_devices, num_sharing: devices over which the routed experts, and the shared ones, are divided already: those of
        a shard.
    """

    num_experts: int
    num_active: int
    size: int
    shared_size: int = 0
    latent_size: int = 0
    is_normalised: bool = True
    is_divided_whole: bool = False
    num_devices: int = 1
    num_sharing: int = 1

    def __post_init__(self) -> None:
        if self.num_active > self.num_experts:
            raise ValueError(f"num_active is {self.num_active}; expected at most the {self.num_experts} experts")

    def routed_parameters(self, hidden_size: int) -> int:
        """Weights of the routed experts that one device holds."""
        whole, parts = (self.num_devices, 1) if self.is_divided_whole else (1, self.num_devices)
        width = self.latent_size or hidden_size
        return self.num_experts // whole * 3 * width * padded_columns(self.size, parts)

    def matrices(self, hidden_size: int) -> dict[str, int]:
        """Weights of its matrices, by their names in a checkpoint; those of all routed experts as the first one's."""
        names, routed = ("gate_proj", "up_proj", "down_proj"), self.routed_parameters(hidden_size)
        experts = {f"experts.0.{name}": routed // 3 for name in names}
        shared = {f"shared_expert.{name}": hidden_size * self.shared_size for name in names}
        return experts | shared | {"latent_proj": 2 * hidden_size * self.latent_size}

    def num_parameters(self, hidden_size: int) -> int:
        shared = 3 * hidden_size * padded_columns(self.shared_size, self.num_sharing)
        latent = 2 * hidden_size * self.latent_size
        return self.routed_parameters(hidden_size) + shared + latent

    def fits(self, degree: int) -> bool:
        return not (self.num_experts if self.is_divided_whole else self.size) % degree

    def divided(self, degree: int, of_rank: int) -> "Experts":
        """Over so many devices. of_rank: those that divide the shared ones, as they do attention."""
        return dataclasses.replace(self, num_devices=self.num_devices * degree, num_sharing=self.num_sharing * of_rank)


Attention = GroupedAttention | LatentAttention | LinearAttention
FeedForward = DenseNetwork | Experts


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One decoder layer, in which a part may be left out."""

    attention: Attention | None
    feed_forward: FeedForward | None


def padded_columns(size: int, degree: int) -> int:
    """Columns that each of `degree` devices has of a product of this width, padded to equal multiples of 16."""
    return size if degree == 1 else -(-size // (degree * _ALIGNMENT)) * _ALIGNMENT


def layer_groups(layers: Sequence[T]) -> list[Sequence[T]]:
    """The first layer alone, the others in groups; the last one alone too, if that leaves two for a group."""
    inner, last = (layers[1:-1], layers[-1:]) if len(layers) > 3 else (layers[1:], ())
    groups = [inner[first : first + _LAYERS_PER_GROUP] for first in range(0, len(inner), _LAYERS_PER_GROUP)]
    return [group for group in (layers[:1], *groups, last) if group]


def halves(layers: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """The layers before an early exit, and those after it."""
    middle = len(layers) // 2
    return layers[:middle], layers[middle:]
