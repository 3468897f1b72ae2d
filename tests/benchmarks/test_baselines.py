"""Against what users have today: llama.cpp and transformers, plain and speculative, on the same weights and cores.

Everything is a ratio within one run: each round times ours and theirs one after the other. `make bench` runs these.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from transformers import AutoModelForCausalLM, GenerationMixin

from swiftspec.artifacts.plan import Candidate, Plan
from swiftspec.artifacts.planned import Planned
from swiftspec.artifacts.prompts import read_prompts, spread
from swiftspec.demo import DEMO_INFLATION
from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.model.weights.inflate import write_inflated
from swiftspec.engine.tasks import encoded_prompts
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import model_directory
from swiftspec.policies import Layout, Request
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from tests.benchmarks.make_plan import NEW_TOKENS
from tools.llamacpp.peer import LlamaCpp, UnavailableError

pytestmark = pytest.mark.bench

NUM_PROMPTS = 6
ROUNDS = 3
ASSISTANT_TOKENS = (2, 4, 6, 8)
SCHEDULES = ("constant", "heuristic")
CONFIDENCE_THRESHOLDS = (0.0, 0.4)  # 0: never stop drafting early; 0.4 is the default
NUM_CORES = len(os.sched_getaffinity(0))
Prompts = list[tuple[int, ...]]


@pytest.fixture(scope="module")
def plan(swiftspec_plan: Planned) -> Plan:
    """Made here and now by `make bench`, of prompts other than those that are timed."""
    return swiftspec_plan.plan


@pytest.fixture(scope="module")
def prompts(plan: Plan) -> Prompts:
    texts = spread(read_prompts(model_directory("demo/prompts") / "validate.jsonl"), NUM_PROMPTS)
    return [tokens for _, tokens in encoded_prompts(texts, model=plan.target.model)]


class Ours:
    """Warm engines, one per candidate; calling one decodes every prompt and answers the seconds."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        self._plan = plan
        self._stack = stack

    def timer(self, candidate: Candidate, prompts: Prompts) -> Callable[[], float]:
        policy = candidate.build()
        layout = Layout.COLOCATED if policy.layout is Layout.TARGET_ONLY else policy.layout
        engine = self._stack.enter_context(
            Launcher.for_candidate(self._plan, candidate, layout=layout, max_context=1024)
        )

        def decode_all() -> float:
            seconds = 0.0
            for prompt in prompts:
                request = Request(prompt=prompt, max_new_tokens=NEW_TOKENS)
                timeline = engine.generate(policy, request, request_id="", sampler=Sampler()).timeline
                assert timeline.num_tokens == NEW_TOKENS
                seconds += timeline.e2e_s
            return seconds

        return decode_all


@pytest.fixture(scope="module")
def ours(plan: Plan) -> Iterator[Ours]:
    with ExitStack() as stack:
        yield Ours(plan, stack)


@pytest.fixture(scope="module")
def inflated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target as a directory that others can load."""
    directory = tmp_path_factory.mktemp("inflated") / "target"
    write_inflated(model_directory("demo/target"), Inflation.parse(DEMO_INFLATION), directory, dtype=torch.bfloat16)
    return directory


@pytest.fixture(scope="module")
def theirs(inflated: Path) -> tuple[GenerationMixin, GenerationMixin]:
    """The same target and draft in transformers."""
    load = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.bfloat16)
    return load(inflated).eval(), load(model_directory("demo/draft")).eval()


@pytest.fixture(scope="module")
def llama_cpp() -> LlamaCpp:
    try:
        return LlamaCpp.build(Path("build/llamacpp"))
    except UnavailableError as error:
        pytest.skip(str(error))


def transformers_seconds(model: GenerationMixin, prompts: Prompts, num_threads: int, **options: object) -> float:
    torch.set_num_threads(num_threads)
    start_s = time.perf_counter()
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        assert output.shape[1] == len(prompt) + NEW_TOKENS
    return time.perf_counter() - start_s


def assisted_seconds(
    target: GenerationMixin,
    assistant: GenerationMixin,
    prompts: Prompts,
    setting: tuple[int, str, float, int],
) -> float:
    """`setting`: assistant tokens, their schedule, confidence threshold, threads."""
    num_assistant_tokens, schedule, confidence_threshold, num_threads = setting
    config = assistant.generation_config
    config.num_assistant_tokens = num_assistant_tokens
    config.num_assistant_tokens_schedule = schedule
    config.assistant_confidence_threshold = confidence_threshold
    return transformers_seconds(target, prompts, num_threads, assistant_model=assistant)


def compare(benchmark: BenchmarkFixture, ours: Callable[[], float], theirs: Callable[[], float]) -> float:
    """Median over rounds of theirs / ours, timed in turn; kept in the benchmark's record."""
    ours(), theirs()  # warm both
    pairs: list[tuple[float, float]] = []

    def one_round() -> None:
        pairs.append((ours(), theirs()))

    benchmark.pedantic(one_round, rounds=ROUNDS)
    ratio = statistics.median(their_s / our_s for our_s, their_s in pairs)
    benchmark.extra_info["ratio"] = round(ratio, 3)
    benchmark.extra_info["tokens_per_s"] = round(
        NUM_PROMPTS * NEW_TOKENS / statistics.median(our_s for our_s, _ in pairs), 1
    )
    return ratio


def autoregressive(plan: Plan, num_cores: int) -> Candidate:
    prediction = plan.candidates[Autoregressive.name].prediction
    groups = {Role.TARGET: tuple(range(num_cores))}
    return Candidate(policy=Autoregressive.name, shape={}, groups=groups, prediction=prediction)


def best(timers: list[Callable[[], float]]) -> Callable[[], float]:
    """The quickest of several settings, each tried once warm."""
    for timer in timers:
        timer()
    return min(timers, key=lambda timer: timer())


@pytest.fixture(scope="module")
def best_autoregressive(plan: Plan, ours: Ours, prompts: Prompts) -> Callable[[], float]:
    return best([ours.timer(autoregressive(plan, count), prompts) for count in range(1, NUM_CORES + 1)])


@pytest.fixture(scope="module")
def chosen(plan: Plan, ours: Ours, prompts: Prompts) -> Callable[[], float]:
    return ours.timer(plan.chosen, prompts)


@pytest.fixture(scope="module")
def generate(theirs: tuple[GenerationMixin, GenerationMixin], prompts: Prompts) -> Callable[[], float]:
    return best([partial(transformers_seconds, theirs[0], prompts, count) for count in range(1, NUM_CORES + 1)])


def test_autoregressive_against_generate(
    benchmark: BenchmarkFixture, best_autoregressive: Callable[[], float], generate: Callable[[], float]
) -> None:
    assert compare(benchmark, best_autoregressive, generate) >= 3.0


def test_chosen_plan_against_generate(
    benchmark: BenchmarkFixture, plan: Plan, chosen: Callable[[], float], generate: Callable[[], float]
) -> None:
    benchmark.extra_info["plan"] = plan.chosen.describe()
    assert compare(benchmark, chosen, generate) >= 5.0


def test_chosen_plan_against_our_autoregressive(
    benchmark: BenchmarkFixture, plan: Plan, chosen: Callable[[], float], best_autoregressive: Callable[[], float]
) -> None:
    benchmark.extra_info["plan"] = plan.chosen.describe()
    assert compare(benchmark, chosen, best_autoregressive) >= 1.3


def test_chosen_plan_against_assisted_generation(
    benchmark: BenchmarkFixture,
    plan: Plan,
    chosen: Callable[[], float],
    theirs: tuple[GenerationMixin, GenerationMixin],
    prompts: Prompts,
) -> None:
    grid = product(ASSISTANT_TOKENS, SCHEDULES, CONFIDENCE_THRESHOLDS, range(1, NUM_CORES + 1))
    settings = [partial(assisted_seconds, *theirs, prompts[:2], setting) for setting in grid]
    fastest = best(list(settings))
    assert isinstance(fastest, partial)
    quickest = fastest.args[3]
    benchmark.extra_info["plan"] = plan.chosen.describe()
    benchmark.extra_info["assisted"] = quickest
    full = partial(assisted_seconds, *theirs, prompts, quickest)
    assert compare(benchmark, chosen, full) >= 3.0


# Settings of llama.cpp's speculative decoding: threads of the draft, most tokens proposed, least probability of one.
PROPOSED = (3, 6, 10)
LEAST_PROBABILITIES = (0.0, 0.5, 0.75)
KINDS = ("bf16", "f16")  # two bytes a weight, as ours


@pytest.fixture(scope="module")
def llama_cpp_plain(llama_cpp: LlamaCpp, inflated: Path, prompts: Prompts) -> Callable[[], float]:
    """The quickest of both kinds and all numbers of threads."""
    settings = [
        partial(llama_cpp_seconds, llama_cpp, prompts, target=llama_cpp.convert(inflated, kind), num_threads=count)
        for kind in KINDS
        for count in range(1, NUM_CORES + 1)
    ]
    return best(list(settings))


@pytest.fixture(scope="module")
def llama_cpp_speculative(llama_cpp: LlamaCpp, inflated: Path, prompts: Prompts) -> Callable[[], float]:
    """The quickest of both kinds and all settings, found on two of the prompts."""
    draft = model_directory("demo/draft")
    settings = [
        {
            "target": llama_cpp.convert(inflated, kind),
            "draft": llama_cpp.convert(draft, kind),
            "num_threads": NUM_CORES,
            "draft_threads": draft_threads,
            "most_proposed": most,
            "least_probability": least,
        }
        for kind in KINDS
        for draft_threads in range(1, NUM_CORES + 1)
        for most in PROPOSED
        for least in LEAST_PROBABILITIES
    ]
    timers = [partial(llama_cpp_seconds, llama_cpp, prompts[:2], **setting) for setting in settings]
    quickest = best(list(timers))
    assert isinstance(quickest, partial)
    return partial(llama_cpp_seconds, llama_cpp, prompts, **quickest.keywords)


def llama_cpp_seconds(llama_cpp: LlamaCpp, prompts: Prompts, **setting: Any) -> float:
    return llama_cpp.decode(prompts, new_tokens=NEW_TOKENS, **setting).seconds


def test_autoregressive_against_llama_cpp(
    benchmark: BenchmarkFixture, best_autoregressive: Callable[[], float], llama_cpp_plain: Callable[[], float]
) -> None:
    assert compare(benchmark, best_autoregressive, llama_cpp_plain) >= 1.0


def test_chosen_plan_against_llama_cpp(
    benchmark: BenchmarkFixture, plan: Plan, chosen: Callable[[], float], llama_cpp_plain: Callable[[], float]
) -> None:
    benchmark.extra_info["plan"] = plan.chosen.describe()
    assert compare(benchmark, chosen, llama_cpp_plain) >= 1.6


def test_chosen_plan_against_speculative_llama_cpp(
    benchmark: BenchmarkFixture, plan: Plan, chosen: Callable[[], float], llama_cpp_speculative: Callable[[], float]
) -> None:
    assert isinstance(llama_cpp_speculative, partial)
    setting = {name: str(value) for name, value in llama_cpp_speculative.keywords.items()}
    benchmark.extra_info |= {"plan": plan.chosen.describe(), "llama.cpp": setting}
    assert compare(benchmark, chosen, llama_cpp_speculative) >= 1.3
