"""Shape of a block drafter: a few layers that read the target's hidden states and propose a block of tokens at once.

Sources: DFlash, arXiv 2602.06036, and the checkpoints of its authors. DSpark (arXiv 2607.05147), Domino and the layout
of `speculators` can be planned for, but not run.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from swiftspec.files.reading import read_foreign_json
from swiftspec.models.config_json import ConfigJson
from swiftspec.models.drafters import Drafter, drafter_of
from swiftspec.models.head_spec import check_equal, drafter_layers
from swiftspec.models.spec import ModelSpec

_MOST_TOKENS = 256
_PLANNED = (Drafter.DFLASH, Drafter.DSPARK, Drafter.DOMINO)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """Shape of a block drafter.

    directory: names the drafter in errors.
    layers: its decoder layers.
    feature_layers: the target's layers whose inputs it reads; the number of layers stands for the last one's output.
    mask_token: token at which it guesses.
    block_size: tokens of a block, the verified one included. Each of them sees the others, so all blocks are of this
        size.
    num_draft_tokens: tokens that a block proposes: all but the verified one, unless its place answers, too.
    draft_vocab_size: tokens that it can propose.
    markov_rank, gru_size: widths of the products that correct each token of a block by those before it; 0 without.
    """

    directory: Path
    layers: ModelSpec
    feature_layers: tuple[int, ...]
    mask_token: int
    block_size: int
    drafter: Drafter = Drafter.DFLASH
    num_draft_tokens: int = 0
    draft_vocab_size: int = 0
    markov_rank: int = 0
    gru_size: int = 0

    @classmethod
    def from_directory(cls, directory: str | Path, *, runs: bool = True) -> "BlockSpec":
        """Read config.json. ValueError names directory, field and value of what is missing or unsupported.

        runs: whether the engine has to run it, rather than a plan to count it.
        """
        directory = Path(directory)
        spec = ModelSpec.from_directory(directory) if runs else drafter_layers(directory)
        spec.require_dense(directory)
        values = read_foreign_json(directory / "config.json")
        drafter = drafter_of(directory, values)
        nested = values.get("dflash_config")
        known = (Drafter.DFLASH,) if runs else _PLANNED
        if drafter is None or drafter not in known or (runs and not isinstance(nested, dict)):
            expected = "['DFlashDraftModel'] with a dflash_config"
            raise ConfigJson(directory, values).fail("architectures", values.get("architectures"), expected)
        config = ConfigJson(directory, {**values, **(nested if isinstance(nested, dict) else {})})
        feature_layers, mask_token = _feature_layers(config), _mask_token(config, spec.vocab_size)
        block_size, is_dspark = config.integer("block_size", most=_MOST_TOKENS), drafter is Drafter.DSPARK
        if block_size < 2:
            raise config.fail("block_size", block_size, f"2 to {_MOST_TOKENS} tokens")
        answers_all = config.flag("sample_from_anchor", is_dspark)
        if answers_all and runs:
            raise config.fail("sample_from_anchor", True, "false")
        return cls(
            directory=directory,
            layers=spec,
            feature_layers=feature_layers,
            mask_token=mask_token,
            block_size=block_size,
            drafter=drafter,
            num_draft_tokens=block_size if answers_all else block_size - 1,
            draft_vocab_size=config.integer("draft_vocab_size", spec.vocab_size),
            markov_rank=config.count("markov_rank" if is_dspark else "emb_dim"),
            gru_size=config.count("gru_hidden_dim"),
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


def _feature_layers(config: ConfigJson) -> tuple[int, ...]:
    written = "aux_hidden_state_layer_ids"  # by speculators
    field = written if config.values.get(written) is not None else "target_layer_ids"
    layers = config.values.get(field)
    if not isinstance(layers, list) or not layers or any(type(layer) is not int or layer < 0 for layer in layers):
        raise config.fail(field, layers, "layers' numbers")
    # The output of a layer is the input of the next one.
    return tuple(layer + 1 for layer in layers)


def _mask_token(config: ConfigJson, vocab_size: int) -> int:
    mask_token = config.values.get("mask_token_id")
    if type(mask_token) is not int or not 0 <= mask_token < vocab_size:
        raise config.fail("mask_token_id", mask_token, f"a token id below {vocab_size}")
    return mask_token
