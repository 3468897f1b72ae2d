"""Shape of a model whose layers are not all dense ones: mixtures of experts, latent, linear and windowed attention.

It is for planning: the engine runs the layers of `ModelSpec`, dense or with experts.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.layer_parts import Attention, DenseNetwork, Experts, FeedForward, GroupedAttention, Layer
from swiftspec.models.spec import ModelSpec


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
        (attention,), (network,) = spec.attentions, spec.feed_forwards
        assert isinstance(attention, GroupedAttention), "a dense model has no other"
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
        return Counter(layer.attention for layer in self.layers if layer.attention)

    @property
    def feed_forwards(self) -> Counter[FeedForward]:
        return Counter(layer.feed_forward for layer in self.layers if layer.feed_forward)

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
