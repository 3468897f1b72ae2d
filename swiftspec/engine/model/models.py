"""The models of one process: a target, a draft, or both. The draft may be a head on the target's features."""

from collections.abc import Mapping, Sequence
from math import inf

import torch
from torch.nn import functional as F

from swiftspec.devices.local import Device
from swiftspec.engine.model.drafts.block_drafter import BlockLayers, BlockRunner, load_block_weights
from swiftspec.engine.model.drafts.features import Features, FeatureStore, FeatureTaps
from swiftspec.engine.model.drafts.head_layers import HeadKernels, HeadLayers
from swiftspec.engine.model.drafts.head_runner import HeadRunner
from swiftspec.engine.model.drafts.head_weights import load_head_weights
from swiftspec.engine.model.forward_batch import BatchResult, Chunk, Entry, ForwardBatch, Model, Rows, as_candidates
from swiftspec.engine.model.runner import DTYPES, ModelRunner
from swiftspec.engine.model.sampling.sampler import top_candidates
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.files.document import ModelRef
from swiftspec.kernels.cpu_library import load_library
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.head_spec import BlockSpec, HeadSpec, inflated_layers
from swiftspec.models.heads import Drafter
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.policies import DraftKind
from swiftspec.policies.effects import Role

Models = Mapping[Role, ModelRunner | HeadRunner | BlockRunner]
_NONE: Mapping[Role, ModelRef] = {}
_WARM_ROWS = 32  # larger forwards are rare, and merely slower the first time


def load_models(
    references: Mapping[Role, ModelRef],
    *,
    elsewhere: Mapping[Role, ModelRef] = _NONE,
    max_context: int,
    tree_slots: int,
    num_sequences: int = 1,
    tenants: Sequence[str] = (),
    device: str = "cpu",
    tp_group: TPGroup | None = None,
) -> Models:
    """Load the models of a process, with room as `ModelRunner.load` says.

    elsewhere: as of `Setup`. ValueError, in one sentence, if a model cannot be used, or a head not with this target.
    """
    pair = {**elsewhere, **references}
    spec = head_of(pair, device=device, apart=bool(elsewhere))
    whole = {
        role: ModelRunner.load(
            reference,
            max_context=max_context,
            tree_slots=tree_slots,
            num_sequences=num_sequences,
            tenants=tenants if role is Role.TARGET else (),
            device=device,
            tp_group=tp_group,
            taps=_taps(spec, reference) if spec and role is Role.TARGET else None,
        )
        for role, reference in references.items()
        if spec is None or role is Role.TARGET
    }
    if spec is None or Role.DRAFT not in references:
        return whole
    if Role.TARGET not in references and tp_group is not None and tp_group.size > 1:
        raise ValueError(f"draft {pair[Role.DRAFT].model} is a head; it cannot be divided by {tp_group.size} ranks")
    draft, directory = pair[Role.DRAFT], model_directory(pair[Role.TARGET].model)
    dtype = DTYPES["float32" if draft.dtype == "int8" else draft.dtype]
    target, capacity = ModelSpec.from_directory(directory), max_context + tree_slots
    width = _taps(spec, pair[Role.TARGET]).width
    caches: Sequence[Features] = (
        whole[Role.TARGET].caches
        if Role.TARGET in whole
        else [FeatureStore(capacity=capacity, width=width) for _ in range(num_sequences)]
    )
    if isinstance(spec, BlockSpec):
        block = BlockLayers(spec, load_block_weights(spec, target, directory), dtype=dtype)
        return {**whole, Role.DRAFT: BlockRunner(block, caches, capacity=capacity, dtype=dtype)}
    weights = load_head_weights(spec, target, directory)
    library = load_library() if spec.format is Drafter.EAGLE3 and dtype == torch.float32 else None
    head = HeadKernels(spec, weights, library=library) if library else HeadLayers(spec, weights, dtype=dtype)
    return {**whole, Role.DRAFT: HeadRunner(head, caches, capacity=capacity, dtype=dtype)}


def on_devices(kind: Device, numbers: Sequence[int]) -> str:
    """Torch's name for a process's devices: cores, a thread for each, or the one GPU, which is current then."""
    if kind == "cpu":
        torch.set_num_threads(len(numbers))
        return "cpu"
    torch.set_num_threads(1)  # launching kernels needs one
    torch.cuda.set_device(numbers[0])
    return f"cuda:{numbers[0]}"


def warm_up(models: Models) -> None:
    """Run the usual numbers of rows. Models with threads of their own need none of torch's from then on."""
    for model in models.values():
        model.warm_up(_WARM_ROWS)
    if all(model.has_own_threads for model in models.values()):
        torch.set_num_threads(1)


def head_of(
    references: Mapping[Role, ModelRef], *, device: str = "cpu", apart: bool = False
) -> HeadSpec | BlockSpec | None:
    """The draft's shape if it reads the target's features. ValueError unless the target is known, and on a CPU."""
    draft = references.get(Role.DRAFT)
    kind = draft_facts(draft.model).kind if draft else DraftKind.SERIAL
    if draft is None or not kind.reads_target:
        return None
    if Role.TARGET not in references or (apart and kind is DraftKind.BLOCK):
        raise ValueError(f"draft {draft.model} reads the target's hidden states; expected a co-located policy")
    if device != "cpu":
        raise ValueError(f"draft {draft.model} reads the target's hidden states, on CPUs only; the device is {device}")
    if draft.inflate:
        raise ValueError(f"draft {draft.model} is a head; it cannot be inflated to {draft.inflate}")
    directory = model_directory(draft.model)
    return HeadSpec.from_directory(directory) if kind is DraftKind.HEAD else BlockSpec.from_directory(directory)


def feature_bytes(head: ModelRef, target: ModelRef) -> int:
    """Bytes of the features that a head keeps for a token. ValueError if it is not one for this target."""
    spec = HeadSpec.from_directory(model_directory(head.model))
    return torch.float32.itemsize * _taps(spec, target).width


def _taps(head: HeadSpec | BlockSpec, target: ModelRef) -> FeatureTaps:
    spec = ModelSpec.from_directory(model_directory(target.model))
    inflation = Inflation.parse(target.inflate) if target.inflate else None
    return FeatureTaps(inflated_layers(head.layers_of(spec), spec, inflation), spec.hidden_size)


def with_vocabulary(draft: Model, *, own_size: int, size: int) -> Model:
    """A draft of `own_size` tokens as a model of its target's vocabulary, which is padded to another `size`.

    Both have one tokenizer, so the ids that only one of them has stand for no text. The draft reads such an id as token
    0, and proposes none: that costs guesses, never output.
    """
    return draft if own_size == size else _ResizedDraft(draft, own_size=own_size, size=size)


class _ResizedDraft(Model):
    """A draft as its target's programs see it."""

    def __init__(self, draft: Model, *, own_size: int, size: int) -> None:
        self._draft, self._own_size, self._size = draft, own_size, size

    def forward(self, batch: ForwardBatch) -> BatchResult:
        is_larger = self._own_size > self._size
        result = self._draft.forward(self._readable(batch, top_k=0 if is_larger else batch.top_k))
        # A negative width cuts.
        logits = tuple(F.pad(each, (0, self._size - self._own_size), value=-inf) for each in result.logits)
        if not (is_larger and batch.top_k):
            return BatchResult(logits, result.candidates)
        return BatchResult(logits, tuple(as_candidates(*top_candidates(each, batch.top_k)) for each in logits))

    def check(self, batch: ForwardBatch) -> None:
        self._draft.check(self._readable(batch, top_k=0))

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        self._draft.keep(sequence, slots, num_verified)

    def reset(self, sequence: int, tenant: int = 0) -> None:
        self._draft.reset(sequence, tenant)

    def _readable(self, batch: ForwardBatch, *, top_k: int) -> ForwardBatch:
        return ForwardBatch(batch.kind, tuple(map(self._known, batch.entries)), top_k)

    def _known(self, entry: Entry) -> Entry:
        if isinstance(entry, Chunk):
            return entry._replace(tokens=tuple(map(self._known_token, entry.tokens)))
        return Rows(entry.sequence, tuple(row._replace(token=self._known_token(row.token)) for row in entry.rows))

    def _known_token(self, token: int) -> int:
        return token if token < self._own_size else 0
