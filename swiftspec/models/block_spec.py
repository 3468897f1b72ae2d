"""Shape of a block drafter: a few layers that read the target's hidden states and propose a block of tokens at once.

Source: DFlash, arXiv 2602.06036, and the checkpoints of its authors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftspec.files.reading import read_foreign_json, shown
from swiftspec.models.head_spec import check_equal
from swiftspec.models.spec import ModelSpec

__all__ = ["BlockSpec", "is_block_drafter"]

_ARCHITECTURE = "DFlashDraftModel"
_MOST_TOKENS = 256


def is_block_drafter(values: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a block drafter."""
    names = values.get("architectures")
    return isinstance(names, list) and _ARCHITECTURE in names


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """Shape of a block drafter.

    Parameters
    ----------
    directory : Path
        Names the drafter in errors.
    layers : ModelSpec
        Its decoder layers.
    feature_layers : tuple of int
        The target's layers whose inputs it reads; the number of layers stands for the last one's output.
    mask_token : int
        Token at which it guesses.
    block_size : int
        Tokens of a block, the verified one included. Each of them sees the others, so all blocks are of this size.
    """

    directory: Path
    layers: ModelSpec
    feature_layers: tuple[int, ...]
    mask_token: int
    block_size: int

    @classmethod
    def from_directory(cls, directory: str | Path) -> BlockSpec:
        """Read config.json. ValueError names directory, field and value of what is missing or unsupported."""
        directory = Path(directory)
        spec = ModelSpec.from_directory(directory)
        spec.require_dense(directory)
        values = read_foreign_json(directory / "config.json")
        if not is_block_drafter(values):
            found = shown(values.get("architectures"))
            raise ValueError(f"{directory}: config.json architectures is {found}; expected [{_ARCHITECTURE!r}]")
        own = values.get("dflash_config")
        own = own if isinstance(own, dict) else {}
        layers, mask_token = own.get("target_layer_ids"), own.get("mask_token_id")
        if not isinstance(layers, list) or not layers or any(type(layer) is not int or layer < 0 for layer in layers):
            raise ValueError(f"{directory}: config.json target_layer_ids is {shown(layers)}; expected layers' numbers")
        if type(mask_token) is not int or not 0 <= mask_token < spec.vocab_size:
            raise ValueError(
                f"{directory}: config.json mask_token_id is {shown(mask_token)}; "
                f"expected a token id below {spec.vocab_size}"
            )
        block_size = values.get("block_size")
        if type(block_size) is not int or not 2 <= block_size <= _MOST_TOKENS:
            raise ValueError(
                f"{directory}: config.json block_size is {shown(block_size)}; expected 2 to {_MOST_TOKENS} tokens"
            )
        # The output of a layer is the input of the next one.
        inputs = tuple(layer + 1 for layer in layers)
        return cls(
            directory=directory, layers=spec, feature_layers=inputs, mask_token=mask_token, block_size=block_size
        )

    @property
    def untied_layers(self) -> ModelSpec:
        """Its layers' shape, with an output matrix that is not the embedding."""
        return dataclasses.replace(self.layers, tie_word_embeddings=False)

    def layers_of(self, target: ModelSpec) -> tuple[int, ...]:
        """`feature_layers`. ValueError, naming field and value, if it is a drafter for another target."""
        check_equal(self.directory, "hidden_size", self.layers.hidden_size, target.hidden_size, "hidden size")
        check_equal(self.directory, "vocab_size", self.layers.vocab_size, target.vocab_size, "vocabulary size")
        if max(self.feature_layers) > target.num_layers:
            raise ValueError(
                f"{self.directory}: config.json target_layer_ids has {max(self.feature_layers) - 1}; "
                f"the target has {target.num_layers} layers"
            )
        return self.feature_layers
