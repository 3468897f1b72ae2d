"""Scored prompts on real engines: the target's own log-probs, whatever runs beside them."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import swiftspec
from swiftspec.engine.api import ScoredToken
from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler, log_probs
from swiftspec.engine.requests import Task
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import model_directory
from swiftspec.policies import Layout, Policy, Request, make_policy
from swiftspec.policies.scoring import PromptScoring
from swiftspec.scheduler.admission import AdmissionLimits
from swiftspec.timing.timeline import Phase
from tests.cli.samples import plan as sample_plan
from tests.engine.conftest import start_engine, two_cores
from tests.engine.pairs import VOCAB_SIZE, references, write_pair

DEMO = sample_plan(
    target=ModelRef(model="demo/target", dtype="float32"), draft=ModelRef(model="demo/draft", dtype="float32")
)

MOST_ROUNDING = 1e-4  # of log-probs, as docs/serving.md promises: transformers adds up in another order


@pytest.fixture(scope="module")
def text() -> str:
    """Over 256 tokens: three pieces."""
    lines = files("swiftspec.demo").joinpath("prompts/trace.jsonl").read_text(encoding="utf-8").splitlines()
    return "".join(json.loads(line)["prompt"] for line in lines[:3])


def reference(tokens: tuple[int, ...]) -> Tensor:
    """Log-probs [T, V] of transformers in fp32."""
    model = AutoModelForCausalLM.from_pretrained(model_directory("demo/target"), dtype=torch.float32)
    with torch.no_grad():
        scores: Tensor = model(torch.tensor([tokens])).logits[0].log_softmax(dim=-1)
    return scores


def scores_of(tokens: tuple[ScoredToken, ...]) -> list[float]:
    first, *others = [token.log_prob for token in tokens]
    assert first is None
    return [score for score in others if score is not None]


@two_cores
@pytest.mark.parametrize("policy", ["autoregressive", "serial_chain", "swiftspec"])
def test_log_probs_are_those_of_transformers(policy: str, text: str) -> None:
    """By every layout of an engine."""
    with swiftspec.Engine(DEMO, policy=policy) as engine:
        scored = engine.score(text, num_candidates=3)
        assert [token.log_prob for token in engine.score(scored[0].text)] == [None]
        assert engine.stats().requests == 0
    tokens = tuple(token.token_id for token in scored)
    expected = reference(tokens)
    assert len(tokens) > 256
    assert "".join(token.text for token in scored) == text
    torch.testing.assert_close(
        torch.tensor(scores_of(scored)),
        expected[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0],
        rtol=0,
        atol=MOST_ROUNDING,
    )
    best = expected[:-1].topk(3)
    torch.testing.assert_close(
        torch.tensor([[score for _, score in token.candidates] for token in scored[1:]]),
        best.values,
        rtol=0,
        atol=MOST_ROUNDING,
    )


def test_log_probs_of_tokens() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [10.0, 0.0, 0.0, -10.0]])
    first, second = log_probs(logits, (3, 0))
    assert first == pytest.approx(-torch.log(torch.tensor(4.0)).item())
    assert second == pytest.approx(0.0, abs=1e-3)


PROMPTS = tuple(tuple((7 * size + 3 * index) % VOCAB_SIZE for index in range(size)) for size in range(20, 220, 37))
SCORING: Policy = PromptScoring(num_candidates=2)
WRITING = make_policy("serial_chain")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    return references(write_pair(tmp_path_factory.mktemp("scored"), architecture="llama"))


def ended(engine: Launcher, policy: Policy, prompt: tuple[int, ...]) -> Generation:
    request = Request(prompt=prompt, max_new_tokens=1 if policy is SCORING else 40)
    stream = engine.stream(policy, Task(prompt_id="", request=request), sampler=Sampler())
    try:
        while True:
            next(stream)
    except StopIteration as finished:
        generation: Generation = finished.value
        return generation


def together(engine: Launcher) -> list[Generation]:
    """Every prompt scored, and every prompt continued, all at once."""
    work = [(policy, prompt) for prompt in PROMPTS for policy in (WRITING, SCORING)]
    with ThreadPoolExecutor(len(work)) as threads:
        return list(threads.map(lambda each: ended(engine, *each), work))


@pytest.fixture(scope="module")
def alone(llama: tuple[ModelRef, ModelRef]) -> list[Generation]:
    with start_engine(llama, Layout.COLOCATED) as engine:
        return [ended(engine, policy, prompt) for prompt in PROMPTS for policy in (WRITING, SCORING)]


def said(generations: list[Generation]) -> list[object]:
    return [(each.tokens, each.log_probs, each.candidates) for each in generations]


# 30 blocks are for three of the longest: some give way, and are scored from the beginning.
@pytest.mark.parametrize("num_blocks", [None, 30])
def test_requests_and_scored_prompts_do_not_disturb_each_other(
    llama: tuple[ModelRef, ModelRef], alone: list[Generation], num_blocks: int | None
) -> None:
    limits = AdmissionLimits(max_running=8, num_blocks=num_blocks, tree_rows=WRITING.target_rows)
    with start_engine(llama, Layout.COLOCATED, admission=limits) as engine:
        found = together(engine)
    assert said(found) == said(alone)
    assert [len(each.log_probs) for each in found[1::2]] == [len(prompt) - 1 for prompt in PROMPTS]
    starts = [
        {span.start_s for each in some for span in each.timeline.phase(Phase.PREFILL)}
        for some in (found[::2], found[1::2])
    ]
    assert starts[0] & starts[1], "they share steps"


@two_cores
def test_a_scored_prompt_waits_for_no_draft_and_needs_one_of_several_targets(
    llama: tuple[ModelRef, ModelRef], alone: list[Generation]
) -> None:
    with start_engine(llama, Layout.DISAGGREGATED, target_groups=2, patience_s=5.0) as engine:
        assert ended(engine, SCORING, PROMPTS[3]).log_probs == alone[7].log_probs


def test_a_task_that_is_cancelled_leaves_the_engine_as_it_was(text: str) -> None:
    async def some() -> tuple[tuple[ScoredToken, ...], ...]:
        async with swiftspec.AsyncEngine(DEMO, policy="autoregressive") as engine:
            first = asyncio.create_task(engine.score(text))
            await asyncio.sleep(0.01)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            return tuple(await asyncio.gather(*(engine.score(text) for _ in range(3))))

    first, *others = asyncio.run(some())
    assert others == [first, first]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [("", "prompt is empty"), ((4096,), "prompt has token 4096"), ((1,) * 2000, "prompt has 2000 tokens")],
)
def test_what_cannot_be_scored_is_refused(prompt: str | tuple[int, ...], message: str) -> None:
    with swiftspec.Engine(DEMO, policy="autoregressive") as engine:
        with pytest.raises(ValueError, match=message):
            engine.score(prompt)
        with pytest.raises(ValueError, match="num_candidates is -1"):
            engine.score("x", num_candidates=-1)
