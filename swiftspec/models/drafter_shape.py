"""Shape of a head or block drafter beside its target, as a plan needs it."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from swiftspec.models.block_spec import BlockSpec
from swiftspec.models.drafters import Drafter
from swiftspec.models.head_spec import HeadSpec, check_equal, drafter_layers
from swiftspec.models.heads import HEADS, UNNAMED_HEADS, Head, Product
from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import DraftKind


class DrafterShape(NamedTuple):
    """A drafter beside its target.

    spec: its layers, and the vocabulary of its answers.
    products: of its forwards, beside those of its layers.
    feature_bytes: of the hidden states that go to a head with devices of its own for each token, in bf16.
    block_tokens: most tokens that a block drafter proposes at once; 0 where its config.json does not say.
    """

    spec: ModelSpec
    products: tuple[Product, ...]
    feature_bytes: int = 0
    block_tokens: int = 0

    @classmethod
    def of(cls, directory: Path, drafter: Drafter, target: ModelSpec) -> "DrafterShape":
        """As its config.json has it. ValueError, naming field and value, if it is another target's."""
        if drafter is Drafter.MTP:  # a layer like the target's last one, by itself or in the target's checkpoint
            own = drafter_layers(directory)
            if own.num_layers != 1:
                check_equal(directory, "num_hidden_layers", own.num_layers, target.num_layers, "number of layers")
            return cls.named(HEADS[Drafter.MTP], target)
        known = (HEADS | UNNAMED_HEADS)[drafter]
        if known.kind is DraftKind.BLOCK and drafter is not Drafter.P_EAGLE:
            block = BlockSpec.from_directory(directory, runs=False)
            known = replace(known, markov_rank=block.markov_rank, gru_size=block.gru_size)
            return cls(
                spec=replace(block.untied_layers, vocab_size=block.draft_vocab_size),
                products=_products(known, len(block.layers_of(target)), target),
                block_tokens=block.num_draft_tokens,
            )
        head = HeadSpec.from_directory(directory, runs=False)
        count = len(head.layers_of(target))
        return cls(
            spec=replace(head.untied_layer, vocab_size=head.draft_vocab_size),
            products=_products(known, known.num_features if drafter is Drafter.EAGLE else count, target),
            feature_bytes=BF16_BYTES * count * target.hidden_size if known.kind is DraftKind.HEAD else 0,
        )

    @classmethod
    def named(cls, head: Head, target: ModelSpec) -> "DrafterShape":
        """The usual checkpoint of its kind."""
        return cls(
            spec=head.spec(target), products=tuple(head.products(target)), feature_bytes=head.feature_bytes(target)
        )


def _products(known: Head, num_features: int, target: ModelSpec) -> tuple[Product, ...]:
    return tuple(replace(known, num_features=num_features).products(target))
