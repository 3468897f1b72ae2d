"""Drafters, as the content of their config.json tells them apart: architectures, types, and fields that one kind has.

A folder's name says nothing. The spellings are those of the kinds' authors, of `speculators` and of SpecForge.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from swiftspec.files.reading import shown


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
