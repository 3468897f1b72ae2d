"""The simulator's acceptance against the models': one simulated machine, a replayed trace or real forwards.

The same policies run in the simulator twice, on the same clock and prompts: once answered by the trace, once by the
pair itself. What differs is the draft off the target's path, which a trace does not hold.
"""

import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from swiftspec.acceptance import AcceptanceTrace, TracedPrompt
from swiftspec.documents import ModelRef
from swiftspec.engine.cached import CachedDecoder
from swiftspec.engine.sampling import top_candidates
from swiftspec.planner.fit import fitted_temperature
from swiftspec.policies import Policy, Request, make_policy
from swiftspec.policies.effects import Candidates, Role, Row
from swiftspec.profiler.acceptance import record_trace
from swiftspec.simulator.driver import Simulator
from swiftspec.simulator.oracle import CandidatePool
from swiftspec.specs import model_directory
from swiftspec.timeline import measure
from swiftspec.tokenizer import Tokenizer
from tests.simulator.builders import machine_profile

pytestmark = pytest.mark.bench

NUM_PROMPTS = 24
NEW_TOKENS = 64
NUM_CANDIDATES = 15
SEEDS = (0, 1)
# fp32, in which both sides have the same path: in bf16 near-ties would send some prompts elsewhere.
TARGET = ModelRef(model="demo/target", dtype="float32")
DRAFT = ModelRef(model="demo/draft", dtype="float32")
SHAPES = {
    "tree of 8": ("serial_tree", {"verify_rows": 8, "expand_rows": 4, "expansions": 5}),
    "tree of 16": ("serial_tree", {"verify_rows": 16, "expand_rows": 4, "expansions": 6}),
    "asynchronous tree of 10": ("swiftspec", {"verify_rows": 10, "expand_rows": 8}),
    "asynchronous tree of 16": ("swiftspec", {"verify_rows": 16, "expand_rows": 8, "num_candidates": NUM_CANDIDATES}),
}


class ModelOracle:
    """Answers a request's forwards with the models themselves."""

    prompts: dict[str, tuple[int, ...]]
    models: dict[Role, CachedDecoder]

    def __init__(
        self, pool: CandidatePool, prompt: TracedPrompt, *, prompt_index: int, rng: np.random.Generator
    ) -> None:
        del pool, prompt_index, rng  # a trace's
        self._prompt = self.prompts[prompt.prompt_id]
        self._most = len(prompt.target_tokens)
        self._context = dict.fromkeys(Role, 0)
        for model in self.models.values():
            model.reset()

    def request(self, max_new_tokens: int | None) -> Request:
        return Request(prompt=self._prompt, max_new_tokens=min(self._most, max_new_tokens or self._most))

    def context(self, role: Role) -> int:
        return self._context[role]

    def prefill(self, role: Role, tokens: Sequence[int]) -> int:
        self._context[role] += len(tokens)
        return int(self.models[role].prefill(tokens).argmax())

    def draft(self, rows: Sequence[Row], num_candidates: int) -> tuple[Candidates, ...]:
        tokens, logprobs = top_candidates(self.models[Role.DRAFT].forward(rows), num_candidates)
        return tuple(map(Candidates, map(tuple, tokens), map(tuple, logprobs)))

    def target(self, rows: Sequence[Row]) -> tuple[int, ...]:
        return tuple(self.models[Role.TARGET].forward(rows).argmax(-1).tolist())

    def keep(self, role: Role, slots: Sequence[int], num_verified: int) -> None:
        self.models[role].keep(slots, num_verified)
        self._context[role] += num_verified


@pytest.fixture(scope="module")
def trace() -> AcceptanceTrace:
    """Of prompts evenly spread over the bundled ones for validation."""
    directory = model_directory("demo/target")
    tokenizer = Tokenizer(directory)
    lines = (directory.parent / "prompts" / "validate.jsonl").read_text().splitlines()
    prompts = [json.loads(lines[number * len(lines) // NUM_PROMPTS]) for number in range(NUM_PROMPTS)]
    ModelOracle.prompts = {prompt["id"]: tokenizer.encode(prompt["prompt"]) for prompt in prompts}
    ModelOracle.models = {
        role: CachedDecoder.load(reference, max_context=512, tree_slots=256)
        for role, reference in ((Role.TARGET, TARGET), (Role.DRAFT, DRAFT))
    }
    return record_trace(
        target=TARGET,
        draft=DRAFT,
        prompts=list(ModelOracle.prompts.items()),
        max_new_tokens=NEW_TOKENS,
        num_candidates=NUM_CANDIDATES,
        num_threads=torch.get_num_threads(),
        progress=lambda *_: None,
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_replay_accepts_as_the_models_do(
    benchmark: BenchmarkFixture, monkeypatch: pytest.MonkeyPatch, trace: AcceptanceTrace, shape: str
) -> None:
    name, rows = SHAPES[shape]
    policy = make_policy(name, **rows, draft_temperature=fitted_temperature(trace))
    replayed = float(np.mean([tokens_per_s(policy, trace, seed=seed) for seed in SEEDS]))
    monkeypatch.setattr("swiftspec.simulator.driver.TraceOracle", ModelOracle)
    answered = benchmark.pedantic(tokens_per_s, args=(policy, trace), kwargs={"seed": 0}, rounds=1)
    benchmark.extra_info["replayed_over_answered"] = round(replayed / answered, 4)
    assert replayed / answered == pytest.approx(1, abs=0.04)


def tokens_per_s(policy: Policy, trace: AcceptanceTrace, *, seed: int) -> float:
    """On a machine whose target forward costs 20 of the draft's; both share the clock, only the answers differ."""
    simulation = Simulator(machine_profile(cost_ratio=20), trace).run(policy, degrees=dict.fromkeys(Role, 1), seed=seed)
    return measure(simulation.timelines).figures.tokens_per_s
