"""Kind of a draft, from its config.json."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftspec.files.reading import read_foreign_json, shown
from swiftspec.models.block_spec import BlockSpec
from swiftspec.models.drafters import Drafter, drafter_of
from swiftspec.models.head_spec import HeadSpec
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.vocabulary import check_same_vocabulary
from swiftspec.policies import DraftKind

_MASK_FIELDS = ("pard_token", "ptd_token_id")  # as in the checkpoints of PARD's authors, and in ones for vLLM
KIND_OF_DRAFTER = {
    Drafter.EAGLE: DraftKind.HEAD,
    Drafter.EAGLE3: DraftKind.HEAD,
    Drafter.MTP: DraftKind.HEAD,
    Drafter.P_EAGLE: DraftKind.BLOCK,
    Drafter.DFLASH: DraftKind.BLOCK,
    Drafter.DSPARK: DraftKind.BLOCK,
    Drafter.DOMINO: DraftKind.BLOCK,
    Drafter.PARD: DraftKind.PARALLEL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """Facts that a policy must know of a draft.

    mask_token: token at which it guesses a later one; -1 if it has none. drafter: what it is, if it is no plain model.
    """

    kind: DraftKind = DraftKind.SERIAL
    mask_token: int = -1
    drafter: Drafter | None = None


def draft_facts(model: str | Path, *, runs: bool = True) -> DraftFacts:
    """Facts of the draft in a directory, or of `demo/NAME`. ValueError names the field of config.json that is wrong.

    runs: whether the engine has to run it; a plan needs no mask token.
    """
    path = model_directory(model) / "config.json"
    values = read_foreign_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: holds {type(values).__name__}; expected an object")
    drafter = drafter_of(path.parent, values)
    if drafter is None:
        return DraftFacts()
    kind, mask_token = KIND_OF_DRAFTER[drafter], -1
    if kind is DraftKind.PARALLEL:
        mask_token = _mask_token(path, values)
    elif kind is DraftKind.BLOCK and runs:
        mask_token = BlockSpec.from_directory(path.parent).mask_token
    return DraftFacts(kind=kind, mask_token=mask_token, drafter=drafter)


def _mask_token(path: Path, values: dict[str, Any]) -> int:
    field = next((field for field in _MASK_FIELDS if values.get(field) is not None), _MASK_FIELDS[0])
    mask_token, vocab_size = values.get(field), values.get("vocab_size")
    most = vocab_size if isinstance(vocab_size, int) else 0
    if not isinstance(mask_token, int) or isinstance(mask_token, bool) or not 0 <= mask_token < most:
        raise ValueError(f"{path}: {field} is {shown(mask_token)}; expected a token id below {most}")
    return mask_token


def check_pair(target: Path, draft: Path) -> None:
    """ValueError unless the model in a directory can draft for that in another.

    A draft that reads hidden states is for its own target; any other has the target's vocabulary.
    """
    kind = draft_facts(draft).kind
    if kind.reads_target:
        reader = HeadSpec if kind is DraftKind.HEAD else BlockSpec
        reader.from_directory(draft).layers_of(ModelSpec.from_directory(target))
    else:
        check_same_vocabulary(target, draft)
