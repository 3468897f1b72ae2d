"""Kind of a draft, from its config.json."""

from dataclasses import dataclass
from pathlib import Path

from swiftspec.files.reading import read_foreign_json, shown
from swiftspec.models.block_spec import BlockSpec, is_block_drafter
from swiftspec.models.head_spec import HeadSpec, head_format
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.vocabulary import check_same_vocabulary
from swiftspec.policies import DraftKind

__all__ = ["DraftFacts", "check_pair", "draft_facts"]

_MASK_FIELD = "pard_token"  # as in the checkpoints of PARD's authors


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftFacts:
    """Facts that a policy must know of a draft.

    Parameters
    ----------
    kind : DraftKind
    mask_token : int
        Token at which it guesses a later one; -1 if it has none.
    """

    kind: DraftKind = DraftKind.SERIAL
    mask_token: int = -1


def draft_facts(model: str | Path) -> DraftFacts:
    """Facts of the draft in a directory, or of `demo/NAME`. ValueError names the field of config.json that is wrong."""
    path = model_directory(model) / "config.json"
    values = read_foreign_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: holds {type(values).__name__}; expected an object")
    if head_format(values) is not None:
        return DraftFacts(kind=DraftKind.HEAD)
    if is_block_drafter(values):
        return DraftFacts(kind=DraftKind.BLOCK, mask_token=BlockSpec.from_directory(path.parent).mask_token)
    mask_token = values.get(_MASK_FIELD)
    if mask_token is None:
        return DraftFacts()
    vocab_size = values.get("vocab_size")
    most = vocab_size if isinstance(vocab_size, int) else 0
    if not isinstance(mask_token, int) or isinstance(mask_token, bool) or not 0 <= mask_token < most:
        raise ValueError(f"{path}: {_MASK_FIELD} is {shown(mask_token)}; expected a token id below {most}")
    return DraftFacts(kind=DraftKind.PARALLEL, mask_token=mask_token)


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
