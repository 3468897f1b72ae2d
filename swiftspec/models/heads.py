"""Heads by name: drafts that read their target's hidden states, and whose shape follows from the target's.

A head stands for the usual checkpoint of its kind: as wide as its target, with the target's attention heads and
feed-forward width. A checkpoint of another shape is planned from its own config.json.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import DraftKind


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of a forward beside those of its layers: rows of `num_inputs` values, of `num_outputs` after.

    is_serial: whether each row waits for the one before it, so that every row reads the whole matrix.
    """

    name: str
    num_outputs: int
    num_inputs: int
    is_serial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A kind of head.

    num_features: hidden states of the target that are read for each token, side by side, and its embedding if it is
        among them.
    reads_embedding: whether it is, through the same product.
    is_own_layer: whether its layer is like the target's last one, experts included, rather than a dense one of its
        width.
    is_doubled: whether the first layer reads the token's embedding beside its features.
    most_tokens: vocabulary of its answers, where it is smaller than the target's.
    markov_rank, gru_size: rank of the product that corrects each position of a block by the token before it, and width
        of the recurrence over all tokens before, which it then reads beside the hidden state; 0 without one.
    """

    kind: DraftKind
    num_layers: int
    num_features: int
    reads_embedding: bool = False
    is_own_layer: bool = False
    is_doubled: bool = False
    most_tokens: int | None = None
    markov_rank: int = 0
    gru_size: int = 0

    def spec(self, target: ModelSpec) -> ModelSpec:
        """Its shape with this target."""
        vocab_size = min(target.vocab_size, self.most_tokens or target.vocab_size)
        layer = target.one_layer() if self.is_own_layer else target.dense_layer()
        return dataclasses.replace(
            layer,
            num_layers=self.num_layers,
            vocab_size=vocab_size,
            tie_word_embeddings=False,
            eos_token_ids=(),
            stored=layer.stored if self.is_own_layer else None,
        )

    def feature_bytes(self, target: ModelSpec) -> int:
        """Bytes of the hidden states of one token, in bf16: what goes to a head with devices of its own."""
        return BF16_BYTES * (self.num_features - self.reads_embedding) * target.hidden_size

    def products(self, target: ModelSpec) -> Iterator[Product]:
        """Products of its forwards beside those of its layers.

        That of the features is counted in every forward, though a serial head computes it once per round. DSpark's
        confidences, one output from a hidden state, are not counted.
        """
        hidden = target.hidden_size
        yield Product("features", hidden, self.num_features * hidden)
        if self.is_doubled:
            yield Product("qkv of embeddings", target.query_size + 2 * target.kv_size, hidden)
        if self.gru_size:
            yield Product("gru", 3 * self.gru_size, hidden + self.gru_size, is_serial=True)
            yield Product("correction", self.markov_rank, hidden + self.gru_size, is_serial=True)
        if self.markov_rank:
            yield Product("markov", target.vocab_size, self.markov_rank, is_serial=True)


HEADS = {
    # EAGLE-3 (arXiv 2503.01840) and the configurations of its authors' heads.
    "eagle3": Head(kind=DraftKind.HEAD, num_layers=1, num_features=3, is_doubled=True, most_tokens=32000),
    # DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    "mtp": Head(kind=DraftKind.HEAD, num_layers=1, num_features=2, reads_embedding=True, is_own_layer=True),
    # P-EAGLE (arXiv 2602.01469).
    "p-eagle": Head(kind=DraftKind.BLOCK, num_layers=4, num_features=3, is_doubled=True),
    # DFlash (arXiv 2602.06036).
    "dflash": Head(kind=DraftKind.BLOCK, num_layers=5, num_features=5),
    # DSpark (arXiv 2607.05147).
    "dspark": Head(kind=DraftKind.BLOCK, num_layers=5, num_features=5, markov_rank=256),
}
# Heads that are planned from their own config.json only.
UNNAMED_HEADS = {
    # EAGLE (arXiv 2401.15077), section 4.1.
    "eagle": Head(kind=DraftKind.HEAD, num_layers=1, num_features=2, reads_embedding=True),
    # sgl-project/SpecForge, configs/qwen3-8b-domino.json and specforge/modeling/draft/domino.py at a6b6b02.
    "domino": Head(kind=DraftKind.BLOCK, num_layers=5, num_features=5, markov_rank=256, gru_size=1024),
}
