"""Shapes of drafts that read the target's hidden states: heads and block drafters.

A head is an EAGLE head or a multi-token prediction (MTP) layer; a feature is the residual stream of the target before
one of its layers. Sources: EAGLE-3, arXiv 2503.01840, in its own layout (config.json of a Llama model) and in that of
`speculators`; MTP, DeepSeek-V3, arXiv 2412.19437. EAGLE (arXiv 2401.15077) and P-EAGLE (arXiv 2602.01469) can be
planned for, but not run.

A block drafter is a few layers that propose a block of tokens at once. Sources: DFlash, arXiv 2602.06036, and the
checkpoints of its authors. DSpark (arXiv 2607.05147), Domino and the layout of `speculators` can be planned for, but
not run.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftspec.files.reading import read_foreign_json
from swiftspec.models.config_json import ConfigJson
from swiftspec.models.families import PLANNED_ONLY
from swiftspec.models.heads import Drafter, drafter_of
from swiftspec.models.inflation import Inflation
from swiftspec.models.names import ARCHITECTURES
from swiftspec.models.sparse_config import spec_from_config
from swiftspec.models.spec import ModelSpec

_RUNNABLE = (Drafter.EAGLE3, Drafter.MTP)
_PLANNED = (*_RUNNABLE, Drafter.EAGLE, Drafter.P_EAGLE)
# What a config.json may ask for and this version does not compute.
_UNSUPPORTED = ("norm_before_fc", "fc_norm", "norm_output")
_MOST_TOKENS = 256
_PLANNED_BLOCKS = (Drafter.DFLASH, Drafter.DSPARK, Drafter.DOMINO)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """Shape of a head.

    directory: names the head in errors.
    layer: its decoder layer; `num_layers` is 1, but for P-EAGLE.
    layer_index: of an MTP layer in its checkpoint: the number of the target's layers.
    feature_layers: the target's layers whose inputs it reads; empty for those that EAGLE-3 reads if its config.json
        names none. EAGLE reads the last one's output.
    target_hidden_size: width of the target's residual stream.
    draft_vocab_size: tokens that it can propose.
    norm_before_residual: whether the normalised feature, rather than the feature itself, enters the head's residual
        stream.
    """

    directory: Path
    format: Drafter
    layer: ModelSpec
    layer_index: int
    feature_layers: tuple[int, ...]
    target_hidden_size: int
    draft_vocab_size: int
    norm_before_residual: bool

    @classmethod
    def from_directory(cls, directory: str | Path, *, runs: bool = True) -> "HeadSpec":
        """Read config.json. ValueError names directory, field and value of what is missing or unsupported.

        runs: whether the engine has to run it, rather than a plan to count it.
        """
        directory = Path(directory)
        spec, values, kind = _read(directory, runs=runs)
        config = ConfigJson(directory, values)
        if kind is None or kind not in (_RUNNABLE if runs else _PLANNED):
            raise config.fail("architectures", values.get("architectures"), "that of an EAGLE-3 head")
        for field in _UNSUPPORTED if runs else ():
            if values.get(field):
                raise config.fail(field, values[field], "false")
        if kind in (Drafter.EAGLE, Drafter.EAGLE3) and spec.num_layers != 1:
            raise config.fail("num_hidden_layers", spec.num_layers, "1")
        reads_last = kind in (Drafter.MTP, Drafter.EAGLE)
        return cls(
            directory=directory,
            format=kind,
            layer=spec if kind is Drafter.P_EAGLE else spec.one_layer(),
            layer_index=spec.num_layers,
            feature_layers=(spec.num_layers,) if reads_last else _feature_layers(config),
            target_hidden_size=config.integer("target_hidden_size", spec.hidden_size),
            draft_vocab_size=config.integer("draft_vocab_size", spec.vocab_size),
            norm_before_residual=config.flag("norm_before_residual", False),
        )

    def layers_of(self, target: ModelSpec) -> tuple[int, ...]:
        """The target's layers whose inputs it reads; the number of layers stands for the last one's output.

        ValueError, naming field and value, if it is a head for another target.
        """
        count = target.num_layers
        layers = self.feature_layers or (2, count // 2, count - 3)
        if self.format is Drafter.EAGLE:
            layers = (count,)
        check_equal(self.directory, "target_hidden_size", self.target_hidden_size, target.hidden_size, "hidden size")
        check_equal(self.directory, "vocab_size", self.layer.vocab_size, target.vocab_size, "vocabulary size")
        if self.format is Drafter.MTP:
            check_equal(self.directory, "num_hidden_layers", self.layer_index, count, "number of layers")
        for layer in layers:
            if not 0 <= layer <= count:
                raise ValueError(
                    f"{self.directory}: config.json eagle_aux_hidden_state_layer_ids has {layer}; "
                    f"the target has {count} layers"
                )
        return layers


def _read(directory: Path, *, runs: bool) -> tuple[ModelSpec, dict[str, Any], Drafter | None]:
    """Shape of a drafter's layers, its config.json, and what it is. Its output matrix is never the embedding."""
    spec = ModelSpec.from_directory(directory) if runs else drafter_layers(directory)
    if spec.experts:
        raise ValueError(
            f"{directory}: config.json model_type is {spec.architecture!r}; expected a dense one in a draft that reads "
            "hidden states"
        )
    values = read_foreign_json(directory / "config.json")
    return dataclasses.replace(spec, tie_word_embeddings=False), values, drafter_of(directory, values)


def drafter_layers(directory: Path) -> ModelSpec:
    """Shape of a drafter's own layers, for planning; those of an architecture that is not known are Llama's."""
    values = ConfigJson.read(directory).values
    kind = values.get("model_type")
    known = {} if kind in ARCHITECTURES or kind in PLANNED_ONLY else {"model_type": "llama"}
    return spec_from_config({**values, **known}, source=str(directory))


def check_equal(directory: Path, field: str, value: int, expected: int, what: str) -> None:
    """ValueError unless a field of a draft's config.json is what the target has; `what` names that."""
    if value != expected:
        raise ValueError(f"{directory}: config.json {field} is {value}; expected {expected}, the target's {what}")


def inflated_layers(layers: tuple[int, ...], spec: ModelSpec, inflation: Inflation | None) -> tuple[int, ...]:
    """Layers of the inflated model before which the residual stream is that before these of the small one."""
    count = inflation.inflated(spec).num_layers if inflation else spec.num_layers
    return tuple(layer * count // spec.num_layers for layer in layers)


def _feature_layers(config: ConfigJson) -> tuple[int, ...]:
    field = "eagle_aux_hidden_state_layer_ids"
    nested = config.values.get("eagle_config")
    found = config.values.get(field) or (nested.get(field) if isinstance(nested, dict) else None)
    if found is None:
        return ()
    if not isinstance(found, list) or len(found) != 3 or any(type(layer) is not int for layer in found):
        raise config.fail(field, found, "three layers")
    return tuple(found)


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
        spec, values, drafter = _read(directory, runs=runs)
        nested = values.get("dflash_config")
        known = (Drafter.DFLASH,) if runs else _PLANNED_BLOCKS
        if drafter is None or drafter not in known or (runs and not isinstance(nested, dict)):
            expected = "['DFlashDraftModel'] with a dflash_config"
            raise ConfigJson(directory, values).fail("architectures", values.get("architectures"), expected)
        config = ConfigJson(directory, {**values, **(nested if isinstance(nested, dict) else {})})
        feature_layers, mask_token = _block_layers(config), _mask_token(config, spec.vocab_size)
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


def _block_layers(config: ConfigJson) -> tuple[int, ...]:
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
