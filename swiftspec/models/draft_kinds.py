"""Kind of a draft, from its config.json, and the shape of a head or block drafter beside its target."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from swiftspec.files.reading import read_foreign_json, shown
from swiftspec.models.head_spec import BlockSpec, HeadSpec, check_equal, drafter_layers
from swiftspec.models.heads import HEADS, UNNAMED_HEADS, Drafter, Head, Product, drafter_of
from swiftspec.models.quantisation import BF16_BYTES
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tokenizer import check_same_vocabulary
from swiftspec.policies import DraftKind

_MASK_FIELDS = ("pard_token", "ptd_token_id")  # as in the checkpoints of PARD's authors, and in ones for vLLM
KIND_OF_DRAFTER = {Drafter(name): head.kind for name, head in (HEADS | UNNAMED_HEADS).items()}
KIND_OF_DRAFTER |= {Drafter.PARD: DraftKind.PARALLEL}


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
                spec=replace(block.layers, vocab_size=block.draft_vocab_size),
                products=_products(known, len(block.layers_of(target)), target),
                block_tokens=block.num_draft_tokens,
            )
        head = HeadSpec.from_directory(directory, runs=False)
        count = len(head.layers_of(target))
        return cls(
            spec=replace(head.layer, vocab_size=head.draft_vocab_size),
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
