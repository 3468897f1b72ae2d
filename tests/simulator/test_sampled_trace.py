"""A trace of sampled output: the engine draws the same text by the same seeds, and accepts as the replay does."""

import json
from typing import Any

import pytest
import torch

from swiftspec.artifacts.metrics import measure
from swiftspec.artifacts.trace import AcceptanceTrace, SamplingParams
from swiftspec.engine.model.models import Models, load_models
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import model_directory
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.policies import Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.profiler.acceptance import record_trace
from swiftspec.simulator.driver import Simulator
from swiftspec.timing.timeline import Phase
from tests.builders import machine_profile
from tools.run_alone import run_alone

pytestmark = [pytest.mark.extra("engine"), pytest.mark.usefixtures("one_thread")]

NUM_PROMPTS, NEW_TOKENS = 10, 48
TARGET, DRAFT = (ModelRef(model=f"demo/{name}", dtype="float32") for name in ("target", "draft"))
SETTINGS = [
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(temperature=0.7, top_p=0.9, top_k=20, seed=2**40),
]


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def trace(request: pytest.FixtureRequest) -> AcceptanceTrace:
    folder = model_directory("demo/target")
    lines = (folder.parent / "prompts" / "validate.jsonl").read_text().splitlines()[::4][:NUM_PROMPTS]
    prompts = [json.loads(line) for line in lines]
    return record_trace(
        target=TARGET,
        draft=DRAFT,
        prompts=[(prompt["id"], Tokenizer(folder).encode(prompt["prompt"])) for prompt in prompts],
        max_new_tokens=NEW_TOKENS,
        num_candidates=15,
        num_threads=1,
        sampling=request.param,
        progress=lambda *_: None,
    )


@pytest.fixture(scope="module")
def models() -> Models:
    return load_models({Role.TARGET: TARGET, Role.DRAFT: DRAFT}, max_context=512, tree_slots=64)


@pytest.mark.parametrize(
    ("name", "shape", "rel"),
    [
        ("serial_chain", {"num_draft_tokens": 4}, 0.005),
        ("serial_tree", {"verify_rows": 8, "expand_rows": 4, "expansions": 3}, 0.03),
        ("eagle2_tree", {"verify_rows": 12, "top_k": 4, "depth": 3}, 0.03),
    ],
)
def test_the_engine_says_and_accepts_what_the_trace_does(
    trace: AcceptanceTrace, models: Models, name: str, shape: dict[str, Any], rel: float
) -> None:
    policy, rounds, ends = make_policy(name, **shape), 0, frozenset({0})
    for number, traced in enumerate(trace.prompts):
        output: list[int] = []
        request = Request(prompt=tuple(traced.prompt_tokens.tolist()), max_new_tokens=NEW_TOKENS, eos_token_ids=ends)
        with torch.inference_mode():
            spans = run_alone(
                policy.programs(request)[Role.TARGET],
                models=models,
                sampler=Sampler(**trace.sampling.of_prompt(number)),
                commit=output.extend,
            )
        assert output == traced.target_tokens.tolist()
        rounds += sum(span.phase is Phase.VERIFY for span in spans)
    replayed = Simulator(machine_profile(), trace).run(policy, degrees=dict.fromkeys(Role, 1), seed=0)
    assert measure(replayed.timelines).figures.tokens_per_round == pytest.approx(trace.num_tokens / rounds, rel=rel)


def test_sampled_text_is_harder_to_guess_than_greedy(trace: AcceptanceTrace) -> None:
    """And far easier than by the likeliest token alone, at temperature 1 the target's draw in 0.31 of places."""
    assert 0.5 < trace.rank_acceptance(1)[0] < 0.85
    assert not trace.sampling.is_greedy
