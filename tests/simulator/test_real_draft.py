"""The replayed draft against the real one: one simulated machine, two ways to answer the draft's forwards.

A trace holds what the draft says on the target's path. What it says elsewhere is drawn from positions nearby, and
decides how best-first growth spends its expansions. Here the same policies run twice on the same prompts and the same
simulated clock, with drawn answers and with those of the model itself: what differs is the draft off the path, and
nothing depends on the speed of this machine.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.trace import AcceptanceTrace, TracedPrompt
from swiftspec.engine.model.drafts.head_runner import HeadRunner
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.models import load_models
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.files.document import ModelRef
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.spec import model_directory
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.planner.search.space import Fit
from swiftspec.policies import make_policy
from swiftspec.policies.effects import Candidates, ForwardKind, Role, Row
from swiftspec.profiler.acceptance import record_trace
from swiftspec.simulator.driver import Simulator
from swiftspec.simulator.oracle import MASK_TOKEN, CandidatePool, TraceOracle
from tests.builders import machine_profile

pytestmark = pytest.mark.extra("engine")

NUM_PROMPTS = 16
NEW_TOKENS = 48
SEEDS = (0, 1)
# fp32, so that batches of rows and single ones have the same near-ties.
DTYPE = "float32"
WEAKENING = 0.3  # standard deviations of noise on the weak draft's matrices
CHAINS = {
    "serial_chain": {"num_draft_tokens": 4},
    "amusd": {"lookahead": 2, "verify_rows": 16},
}
TREES = {
    "serial_tree": {"verify_rows": 16, "expand_rows": 4, "expansions": 5},
    "swiftspec": {"verify_rows": 16, "expand_rows": 8, "num_candidates": 15},
}
PARALLEL_TREES = {
    "parallel_tree": {"verify_rows": 12, "num_masks": 5},
    "swiftspec_parallel": {"verify_rows": 12, "expand_nodes": 6, "num_masks": 5},
}
HEADS: dict[str, dict[str, Any]] = {
    "head_chain": {"num_draft_tokens": 4},
    "ssd_head": {"num_draft_tokens": 4, "branches": 8},
}


class RealDraft(TraceOracle):
    """Answers the draft's forwards by the draft itself, and the target's from the trace: those are its own output."""

    model: ClassVar[ModelRunner]
    mask_token: ClassVar[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model.reset(0)

    def prefill(self, role: Role, tokens: Sequence[int]) -> int | None:
        if role is Role.DRAFT:
            self.model.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, tuple(tokens)),)))
        return super().prefill(role, tokens)

    def draft(self, rows: Sequence[Row], num_candidates: int, *, fuzzy: bool = False) -> tuple[Candidates, ...]:
        super().draft(rows, num_candidates, fuzzy=fuzzy)  # keeps count of the cache
        kind = ForwardKind.LAYER_PARALLEL if fuzzy else ForwardKind.EXACT
        known = tuple(row._replace(token=self.mask_token) if row.token == MASK_TOKEN else row for row in rows)
        return self.model.forward(ForwardBatch(kind, (Rows(0, known),), num_candidates)).candidates[0]

    def keep(self, role: Role, slots: Sequence[int], num_verified: int) -> None:
        super().keep(role, slots, num_verified)
        if role is Role.DRAFT:
            self.model.keep(0, slots, num_verified)


class RealHead(TraceOracle):
    """As `RealDraft`, by the bundled head on the target's features of the traced text."""

    head: ClassVar[HeadRunner]
    tapped: ClassVar[ModelRunner]

    def __init__(self, pool: CandidatePool, prompt: TracedPrompt, **kwargs: Any) -> None:
        super().__init__(pool, prompt, **kwargs)
        text = (*prompt.prompt_tokens.tolist(), *prompt.target_tokens.tolist())
        self.tapped.reset(0)
        self.tapped.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, text),)))
        self.head.reset(0)
        self.head.target[0].features[: len(text)] = self.tapped.caches[0].features[: len(text)]

    def prefill(self, role: Role, tokens: Sequence[int]) -> int | None:
        answer = super().prefill(role, tokens)
        if role is Role.DRAFT:
            self._know()
            self.head.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, tuple(tokens)),)))
        return answer

    def draft(self, rows: Sequence[Row], num_candidates: int, *, fuzzy: bool = False) -> tuple[Candidates, ...]:
        super().draft(rows, num_candidates, fuzzy=fuzzy)  # keeps count of the cache
        self._know()
        return self.head.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, tuple(rows)),), num_candidates)).candidates[0]

    def keep(self, role: Role, slots: Sequence[int], num_verified: int) -> None:
        super().keep(role, slots, num_verified)
        if role is Role.DRAFT:
            self.head.keep(0, slots, num_verified)

    def _know(self) -> None:
        self.head.target[0].prefix_length = self._mirrors[Role.TARGET].prefix_length


def weakened(draft: Path, directory: Path) -> Path:
    """The bundled draft with noise on its matrices, so that it errs far more often, confidently at times."""
    generator = torch.Generator().manual_seed(0)
    weights = load_file(draft / "model.safetensors")
    for name, weight in weights.items():
        if weight.ndim == 2 and "embed" not in name:
            noise = torch.randn(weight.shape, generator=generator) * weight.float().std()
            weights[name] = (weight.float() + WEAKENING * noise).to(weight.dtype)
    directory.mkdir()
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(draft / name, directory)
    return directory


@pytest.fixture(scope="module", params=["bundled", "weak"])
def trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AcceptanceTrace:
    """Of prompts evenly spread over the bundled ones for validation."""
    draft = model_directory("demo/draft")
    if request.param == "weak":
        draft = weakened(draft, tmp_path_factory.mktemp("pair") / "draft")
    recorded = record(draft)
    first_choices = recorded.rank_acceptance(1)[0]
    assert first_choices > 0.7 if request.param == "bundled" else 0.35 < first_choices < 0.68
    return recorded


@pytest.fixture(scope="module")
def parallel_trace() -> AcceptanceTrace:
    """Of the bundled parallel draft, on the same prompts."""
    return record(model_directory("demo/parallel_draft"))


@pytest.fixture(scope="module")
def head_trace() -> AcceptanceTrace:
    """Of the bundled head, on the same prompts; from now on `RealHead` answers by it."""
    target, head = ModelRef(model="demo/target", dtype=DTYPE), ModelRef(model="demo/head", dtype=DTYPE)
    models = {
        role: load_models({role: model}, elsewhere={other: its}, max_context=512, tree_slots=256)[role]
        for role, model, other, its in (
            (Role.TARGET, target, Role.DRAFT, head),
            (Role.DRAFT, head, Role.TARGET, target),
        )
    }
    theirs, ours = models[Role.TARGET], models[Role.DRAFT]
    assert isinstance(theirs, ModelRunner)
    assert isinstance(ours, HeadRunner)
    RealHead.tapped, RealHead.head = theirs, ours
    return traced(head)


def record(draft: Path) -> AcceptanceTrace:
    """A draft's trace; from now on `RealDraft` answers by it."""
    reference = ModelRef(model=str(draft), dtype=DTYPE)
    RealDraft.model = ModelRunner.load(reference, max_context=512, tree_slots=256)
    RealDraft.mask_token = draft_facts(draft).mask_token
    return traced(reference)


def traced(reference: ModelRef) -> AcceptanceTrace:
    """A draft's trace."""
    target = model_directory("demo/target")
    tokenizer = Tokenizer(target)
    lines = (target.parent / "prompts" / "validate.jsonl").read_text().splitlines()
    prompts = [json.loads(lines[number * len(lines) // NUM_PROMPTS]) for number in range(NUM_PROMPTS)]
    return record_trace(
        target=ModelRef(model=str(target), dtype=DTYPE),
        draft=reference,
        prompts=[(prompt["id"], tokenizer.encode(prompt["prompt"])) for prompt in prompts],
        max_new_tokens=NEW_TOKENS,
        num_candidates=15,
        num_threads=torch.get_num_threads(),
        progress=lambda *_: None,
    )


def tokens_per_round(name: str, shape: dict[str, Any], trace: AcceptanceTrace, **kwargs: Any) -> float:
    """On a machine whose target forward costs 5 of the draft's: few expansions a round, so that their order matters."""
    seed = kwargs.pop("seed", 0)
    policy = Fit(trace)(make_policy(name, **shape))
    simulator = Simulator(machine_profile(cost_ratio=5, noise=0.0), trace, **kwargs)
    run = simulator.run(policy, degrees=dict.fromkeys(Role, 1), seed=seed)
    return measure(run.timelines).figures.tokens_per_round


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_accepted_as_the_real_drafts(trace: AcceptanceTrace, name: str) -> None:
    """Behind a wrong token of a chain nothing counts, so that the trace knows all there is to know."""
    replayed = tokens_per_round(name, CHAINS[name], trace)
    assert replayed == pytest.approx(tokens_per_round(name, CHAINS[name], trace, oracle=RealDraft), rel=0.005)


@pytest.mark.parametrize("name", TREES)
def test_trees_are_accepted_as_the_real_drafts(trace: AcceptanceTrace, name: str) -> None:
    replayed = sum(tokens_per_round(name, TREES[name], trace, seed=seed) for seed in SEEDS) / len(SEEDS)
    assert replayed == pytest.approx(tokens_per_round(name, TREES[name], trace, oracle=RealDraft), rel=0.03)


def test_a_chain_from_one_forward_is_accepted_as_the_real_drafts(parallel_trace: AcceptanceTrace) -> None:
    shape = {"num_draft_tokens": 6}
    replayed = tokens_per_round("parallel_chain", shape, parallel_trace)
    real = tokens_per_round("parallel_chain", shape, parallel_trace, oracle=RealDraft)
    assert replayed == pytest.approx(real, rel=0.005)
    assert real > 1.5  # the draft is of use


@pytest.mark.parametrize("name", PARALLEL_TREES)
def test_trees_of_masks_are_accepted_as_the_real_drafts(parallel_trace: AcceptanceTrace, name: str) -> None:
    shape = PARALLEL_TREES[name]
    replayed = sum(tokens_per_round(name, shape, parallel_trace, seed=seed) for seed in SEEDS) / len(SEEDS)
    assert replayed == pytest.approx(tokens_per_round(name, shape, parallel_trace, oracle=RealDraft), rel=0.05)


@pytest.mark.parametrize(("name", "shape"), HEADS.items())
def test_a_head_is_accepted_as_the_real_one(head_trace: AcceptanceTrace, name: str, shape: dict[str, Any]) -> None:
    """In its target's process and apart from it, where it drafts farther ahead of what is verified."""
    replayed = sum(tokens_per_round(name, shape, head_trace, seed=seed) for seed in SEEDS) / len(SEEDS)
    real = tokens_per_round(name, shape, head_trace, oracle=RealHead)
    assert replayed == pytest.approx(real, rel=0.02)
    assert real > 1.5  # the draft is of use
