"""Shape of a model whose layers are not all dense ones: mixtures of experts, latent, linear and windowed attention.

It is for planning: the engine runs the layers of `ModelSpec`, dense or with experts.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.layer_parts import Attention, DenseNetwork, Experts, FeedForward, GroupedAttention, Layer
from swiftspec.models.spec import ModelSpec, dtype_bytes

_STATE_BYTES = 4  # recurrent states are kept in fp32 (mamba_ssm_dtype in the models' config.json)


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseSpec(ModelSpec):
    """A decoder, layer by layer.

    What it shares with a dense model has the same names. `num_heads`, `num_kv_heads` and `head_dim` are those of a
    dense layer beside its own, such as a head's; `intermediate_size` is the width that computes one of its tokens, and
    `experts` are those of the layers that have some.

    layout: how a group of devices shares it; a group of any size divides all of it by width if not given.
    """

    layers: tuple[Layer, ...]
    layout: DeviceLayout | None = None

    def __post_init__(self) -> None:
        if len(self.layers) != self.num_layers:
            raise ValueError(f"layers has {len(self.layers)}; expected num_layers, {self.num_layers}")

    @classmethod
    def of_alike(cls, spec: ModelSpec, windows: Sequence[int] = ()) -> "SparseSpec":
        """The same for a model of usual attention, dense or with experts, whose layers are alike but for their windows.

        windows: latest tokens that each layer reads; 0 for all.
        """
        network = spec.experts or DenseNetwork(size=spec.intermediate_size)
        attention = GroupedAttention(num_heads=spec.num_heads, num_kv_heads=spec.num_kv_heads, head_dim=spec.head_dim)
        if spec.experts is not None:
            active = spec.experts.num_active * spec.experts.size
            spec = dataclasses.replace(spec, intermediate_size=active)
        layers = (
            Layer(attention=dataclasses.replace(attention, window=window), feed_forward=network)
            for window in windows or [0] * spec.num_layers
        )
        return cls.with_layers(spec, tuple(layers))

    @classmethod
    def with_layers(cls, spec: ModelSpec, layers: tuple[Layer, ...]) -> "SparseSpec":
        """A model of these layers, and else as `spec`."""
        return cls(**{field.name: getattr(spec, field.name) for field in dataclasses.fields(ModelSpec)}, layers=layers)

    @property
    def attention_ranks(self) -> int:
        return self.layout.dp if self.layout else 1

    @property
    def attentions(self) -> Counter[Attention]:
        """Kinds of attention, and the number of layers with each."""
        return Counter(layer.attention for layer in self.layers if layer.attention)

    @property
    def feed_forwards(self) -> Counter[FeedForward]:
        """Kinds of feed-forward networks, and the number of layers with each."""
        return Counter(layer.feed_forward for layer in self.layers if layer.feed_forward)

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer keeps a state, so that rejected tokens cannot be cut out of what it remembers."""
        return any(part.state_values for part in self.attentions)

    @property
    def matrix_parameters(self) -> int:
        networks = sum(count * part.num_parameters(self.hidden_size) for part, count in self.feed_forwards.items())
        return self.attention_parameters + networks

    @property
    def attention_parameters(self) -> int:
        return sum(count * part.num_parameters(self.hidden_size) for part, count in self.attentions.items())

    @property
    def expert_parameters(self) -> int:
        return sum(
            count * part.routed_parameters(self.hidden_size)
            for part, count in self.feed_forwards.items()
            if isinstance(part, Experts)
        )

    @property
    def num_parameters(self) -> int:
        """Weights of the whole model without vectors other than norms, which are below a thousandth of them."""
        routers = sum(
            count * part.num_experts * self.hidden_size
            for part, count in self.feed_forwards.items()
            if isinstance(part, Experts)
        )
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        norms = (2 * self.num_layers + 1) * self.hidden_size
        return self.matrix_parameters + routers + embeddings + norms

    def of_layers(self, first: int, last: int) -> "SparseSpec":
        chosen = self.layers[first:last]
        return dataclasses.replace(
            self, layers=chosen, experts=experts_of(chosen), num_layers=len(chosen), num_mtp_layers=0
        )

    def dense_layer(self) -> ModelSpec:
        """A dense layer as wide as this model, as heads have that read its hidden states."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(ModelSpec)}
        return ModelSpec(**{**shared, "num_layers": 1, "num_mtp_layers": 0, "experts": None, "stored": None})

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Memory of what is kept of every token, all layers; windows and states, which do not grow, excepted."""
        values = sum(count * part.kv_values for part, count in self.attentions.items() if not _window(part))
        return values * dtype_bytes(dtype)

    def fixed_bytes(self, dtype: str, *, context: int, rows: int) -> int:
        """Memory of a sequence that does not grow with it: its windows, and its state after each of `rows` rows."""
        kept = sum(
            count * part.kv_values * min(_window(part), context)
            for part, count in self.attentions.items()
            if _window(part)
        )
        states = sum(count * part.state_values for part, count in self.attentions.items())
        return kept * dtype_bytes(dtype) + states * _STATE_BYTES * (1 + rows)

    def objection(self, degree: int) -> str | None:
        """Reason why a group of `degree` devices cannot hold it; None if it can."""
        if self.layout is not None and degree != self.layout.num_devices:
            return f"the layout {self.layout} takes {self.layout.num_devices} devices, not {degree}"
        of_rank = self.layout.tp if self.layout else degree
        for part in (*self.attentions, *self.feed_forwards):
            if part.fits(degree if isinstance(part, Experts) else of_rank):
                continue
            if not isinstance(part, Experts):
                kind = "neurons" if isinstance(part, DenseNetwork) else "attention heads"
                return f"its {kind} cannot be divided by {of_rank}"
            if part.is_divided_whole:
                return f"{part.num_experts} whole experts cannot be divided by {degree}"
            return f"the {part.size} neurons of an expert cannot be divided by {degree}"
        return None

    def divided(self, degree: int) -> "SparseSpec":
        """Shape of what one of `degree` devices holds. ValueError if they cannot divide it."""
        if (objection := self.objection(degree)) is not None:
            raise ValueError(f"degree is {degree}; {objection}")
        of_rank = self.layout.tp if self.layout else degree

        def feed_forward(part: FeedForward) -> FeedForward:
            return part.divided(degree, of_rank) if isinstance(part, Experts) else part.divided(of_rank)

        shard = self.with_parts(lambda part: part.divided(of_rank), feed_forward)
        return dataclasses.replace(shard, vocab_size=DenseNetwork(size=self.vocab_size).divided(of_rank).size)

    def with_parts(
        self, attention: Callable[[Attention], Attention], feed_forward: Callable[[FeedForward], FeedForward]
    ) -> "SparseSpec":
        """The same with other parts in place of each."""
        changed = {  # a model has many layers of few kinds
            layer: Layer(
                attention=layer.attention and attention(layer.attention),
                feed_forward=layer.feed_forward and feed_forward(layer.feed_forward),
            )
            for layer in frozenset(self.layers)
        }
        layers = tuple(changed[layer] for layer in self.layers)
        return dataclasses.replace(self, layers=layers, experts=experts_of(layers))


def in_layout(spec: ModelSpec, layout: DeviceLayout | None) -> ModelSpec:
    """The same model, shared by a group of devices in this way; as it is where the group divides all of it by width."""
    if layout is None or layout.is_plain or (layout.dp == 1 and spec.experts is None):
        return spec
    found = spec if isinstance(spec, SparseSpec) else SparseSpec.of_alike(spec)
    found = found.with_parts(lambda part: part, _whole) if layout.ep > 1 else found
    return dataclasses.replace(found, layout=layout)


def experts_of(layers: tuple[Layer, ...]) -> Experts | None:
    """Experts of the first layer that has some."""
    return next((layer.feed_forward for layer in layers if isinstance(layer.feed_forward, Experts)), None)


def _whole(part: FeedForward) -> FeedForward:
    return dataclasses.replace(part, is_divided_whole=True) if isinstance(part, Experts) else part


def _window(part: Attention) -> int:
    return getattr(part, "window", 0)
