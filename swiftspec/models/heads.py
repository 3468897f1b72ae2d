"""Drafters: what their config.json says they are, and heads by name, whose shape follows from their target's.

A folder's name says nothing: architectures, types, and fields that one kind has do. The spellings are those of the
kinds' authors, of `speculators` and of SpecForge.

A head by name stands for the usual checkpoint of its kind: as wide as its target, with the target's attention heads and
feed-forward width. A checkpoint of another shape is planned from its own config.json.
"""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from swiftspec.files.reading import shown
from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.spec import ModelSpec
from swiftspec.policies import DraftKind


class Drafter(StrEnum):
    """A kind of draft that is no plain model."""

    EAGLE = "eagle"  # and EAGLE-2, which has the same weights
    EAGLE3 = "eagle3"
    MTP = "mtp"
    P_EAGLE = "p-eagle"
    DFLASH = "dflash"
    DSPARK = "dspark"
    DOMINO = "domino"
    PARD = "pard"


# Patterns of lower-case names; the first match counts. None: of drafts that are known, and not supported.
_MARKS: Final[tuple[tuple[str, Drafter | None], ...]] = (
    (r"p-?eagle", Drafter.P_EAGLE),
    (r"eagle-?3", Drafter.EAGLE3),
    (r"dspark", Drafter.DSPARK),
    (r"domino", Drafter.DOMINO),
    (r"dflash", Drafter.DFLASH),
    (r"eagle", Drafter.EAGLE),
    (r"pard\b", Drafter.PARD),
    (r"medusa|hydra|mlp_?speculator", None),
    (r"mtp|nextn", Drafter.MTP),
    (r"draft|speculat", None),
)
_FIELDS: Final[Mapping[str, Drafter | None]] = {
    "eagle_config": Drafter.EAGLE3,
    "eagle_aux_hidden_state_layer_ids": Drafter.EAGLE3,
    "pard_token": Drafter.PARD,
    "ptd_token_id": Drafter.PARD,
    "num_nextn_predict_layers": Drafter.MTP,
    "mtp_num_hidden_layers": Drafter.MTP,
    "medusa_num_heads": None,
    "speculators_config": None,
    "speculators_model_type": None,
    "dflash_config": None,
    "draft_vocab_size": None,
    "target_layer_ids": None,
    "aux_hidden_state_layer_ids": None,
    "parallel_drafting": None,
}
_WIDE: Final = 1024


def drafter_of(directory: Path, values: Mapping[str, Any]) -> Drafter | None:
    """The drafter that a config.json describes; None for a plain model.

    ValueError, naming directory, field and value, for a draft that is not known.
    """
    for field, name in _names(values):
        found = [drafter for mark, drafter in _MARKS if re.search(mark, name.lower())]
        if not found:
            continue
        if found[0] is None:
            raise _unsupported(directory, field, name)
        is_parallel = values.get("parallel_drafting") or values.get("ptd_token_id") is not None
        return Drafter.P_EAGLE if found[0] is Drafter.EAGLE3 and is_parallel else found[0]
    for field, drafter in _FIELDS.items():
        if values.get(field) in (None, False) or (drafter is Drafter.MTP and not values[field]):
            continue
        if drafter is None:
            raise _unsupported(directory, field, values[field])
        return drafter
    # EAGLE's authors wrote theirs as a Llama of one layer; no language model is as wide with one.
    width = values.get("hidden_size")
    is_wide = isinstance(width, int) and width >= _WIDE
    return Drafter.EAGLE if values.get("num_hidden_layers") == 1 and is_wide else None


def _names(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names that say what a model is, the most exact first, each with its field."""
    nested = values.get("dflash_config")
    architectures = values.get("architectures")
    found = [
        ("dflash_config.projector_type", nested.get("projector_type") if isinstance(nested, dict) else None),
        ("speculators_model_type", values.get("speculators_model_type")),
        *(("architectures", name) for name in (architectures if isinstance(architectures, list) else [])),
        ("model_type", values.get("model_type")),
        ("spd_type", values.get("spd_type")),
    ]
    return ((field, name) for field, name in found if isinstance(name, str))


def _unsupported(directory: Path, field: str, value: object) -> ValueError:
    expected = f"expected a plain model, or one of the kinds {', '.join(Drafter)}"
    return ValueError(f"{directory}: config.json {field} is {shown(value)}, of no draft that is supported; {expected}")


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
