"""The bundled pair itself: loadable by anybody, as described, and lossless under every policy."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.engine.process.placement import Placement
from swiftspec.engine.process.timeouts import DraftRecovery
from swiftspec.files.document import ModelRef
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.policies import POLICIES, DraftKind, Layout, Policy, Request, make_policy
from swiftspec.policies.autoregressive import Autoregressive
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase
from tests.engine.forwards import forward
from tools.demo_training.corpus import HELD_OUT_MODULES, training_sources
from tools.demo_training.prompts import TRACED_MODULES, VALIDATED_MODULES

# Written for this test, unlike anything in the pair's own prompt files.
UNSEEN = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "def fibonacci(n):\n    a, b = 0, 1\n    while a < n:\n",
    '"""Convert between Celsius and Fahrenheit."""\n\nimport sys\n\n\ndef main(argv=None):\n    ',
)
NUM_TOKENS = 40
NAMES = ("demo/target", "demo/draft")


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    tokenizer = Tokenizer(model_directory("demo/target"))
    return tuple(tokenizer.encode(text) for text in UNSEEN)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name: str) -> None:
    directory = model_directory(name)
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    ours = CpuDecoder(directory)
    for prompt in prompts():
        rows = len(prompt)
        cache_ = ours.new_cache(rows)
        logits = forward(ours, prompt, range(rows), [(1 << row) - 1 for row in range(rows)], cache_)
        with torch.no_grad():
            expected = theirs(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


def test_transformers_reads_the_tokenizer() -> None:
    theirs = AutoTokenizer.from_pretrained(model_directory("demo/target"))
    for text, prompt in zip(UNSEEN, prompts(), strict=True):
        assert tuple(theirs(text).input_ids) == prompt
        assert theirs.decode(prompt) == text


def test_sizes_are_those_of_the_model_card() -> None:
    target, draft = (ModelSpec.from_directory(model_directory(name)) for name in NAMES)
    assert 7e6 < target.num_parameters < 9e6
    assert 0.8e6 < draft.num_parameters < 1.5e6
    files = [path for name in NAMES for path in model_directory(name).iterdir()]
    assert sum(path.stat().st_size for path in files) <= 20e6


def test_held_out_modules_are_not_trained_on() -> None:
    trained = {name for name, _ in training_sources()}
    assert len(trained) > 500
    assert trained.isdisjoint(f"{module}.py" for module in HELD_OUT_MODULES)


def test_traced_and_validated_prompts_are_held_out_and_different() -> None:
    assert set(TRACED_MODULES) | set(VALIDATED_MODULES) <= set(HELD_OUT_MODULES)
    assert set(TRACED_MODULES).isdisjoint(VALIDATED_MODULES)
    directory = Path(model_directory("demo/target")).parent / "prompts"
    for name, modules in (("trace", TRACED_MODULES), ("validate", VALIDATED_MODULES)):
        ids = [json.loads(line)["id"] for line in (directory / f"{name}.jsonl").read_text().splitlines()]
        assert {prompt_id.rpartition("-")[0] for prompt_id in ids} == set(modules)


Place = tuple[Layout, int, DraftKind]  # layout, number of target groups, and kind of the draft
Engines = dict[Place, Launcher]


INFLATED = "layers=10,hidden=512"
SPECULATIVE = [name for name in POLICIES if name != Autoregressive.name]


@pytest.fixture(scope="module", params=[None, INFLATED], ids=["plain", "inflated"])
def inflate(request: pytest.FixtureRequest) -> str | None:
    shape: str | None = request.param
    return shape


@pytest.fixture(scope="module")
def engines(inflate: str | None) -> Iterator[Engines]:
    target = ModelRef(model="demo/target", inflate=inflate, dtype="float32")

    def start(draft: str, placement: Placement, layout: Layout) -> Launcher:
        models = {Role.TARGET: target, Role.DRAFT: ModelRef(model=draft, dtype="float32")}
        recovery = DraftRecovery(patience_s=5.0)  # the draft takes part on a busy machine, too
        return Launcher(models, placement, layout=layout, max_context=1024, recovery=recovery)

    draft = "demo/parallel_draft"  # every policy works with it, or with a head
    readers = {DraftKind.HEAD: "demo/head", DraftKind.BLOCK: "demo/block"}
    with ExitStack() as stack:
        alone = partial(start, placement=Placement(groups={Role.TARGET: (0,)}), layout=Layout.COLOCATED)
        together = stack.enter_context(alone(draft))
        engines: Engines = {
            (layout, 1, DraftKind.PARALLEL): together for layout in (Layout.TARGET_ONLY, Layout.COLOCATED)
        }
        for kind, model in readers.items():
            engines[Layout.COLOCATED, 1, kind] = stack.enter_context(alone(model))
        # Two target groups and the draft on two cores: slow, and none the less right.
        for target_groups in (1, 2) if len(os.sched_getaffinity(0)) > 1 else ():
            groups = {Role.TARGET: (0, 1)[:target_groups], Role.DRAFT: (1,)}
            apart = start(draft, Placement(groups=groups, target_groups=target_groups), Layout.DISAGGREGATED)
            engines[Layout.DISAGGREGATED, target_groups, DraftKind.PARALLEL] = stack.enter_context(apart)
        if len(os.sched_getaffinity(0)) > 1:
            placement = Placement(groups={Role.TARGET: (0,), Role.DRAFT: (1,)})
            head_apart = start("demo/head", placement, Layout.DISAGGREGATED)
            engines[Layout.DISAGGREGATED, 1, DraftKind.HEAD] = stack.enter_context(head_apart)
        yield engines


def place(policy: Policy) -> Place:
    kind = DraftKind.HEAD if policy.drafts == {DraftKind.HEAD} else DraftKind.PARALLEL
    return policy.layout, policy.target_groups, kind


def output(engines: Engines, policy: Policy, number: int) -> tuple[int, ...]:
    request = Request(prompt=prompts()[number], max_new_tokens=NUM_TOKENS, eos_token_ids=frozenset({0}))
    engine = engines[place(policy)]
    return engine.generate(policy, request, request_id=policy.name, sampler=Sampler()).tokens


@pytest.fixture(scope="module")
def undisturbed(engines: Engines) -> list[tuple[int, ...]]:
    """The target's own output for every prompt."""
    return [output(engines, Autoregressive(), number) for number in range(len(UNSEEN))]


def assert_says_the_same(
    engines: Engines, undisturbed: list[tuple[int, ...]], name: str, numbers: Sequence[int]
) -> None:
    policy = make_policy(name)
    if place(policy) not in engines:
        pytest.skip("disaggregated policies need two cores")
    for number in numbers:
        assert output(engines, policy, number) == undisturbed[number], f"prompt {number}"
        assert len(undisturbed[number]) > 1


@pytest.mark.parametrize("inflate", [None], indirect=True, ids=["plain"], scope="module")
@pytest.mark.parametrize("name", SPECULATIVE)
def test_output_is_the_autoregressive_one(
    engines: Engines, undisturbed: list[tuple[int, ...]], name: str, inflate: str | None
) -> None:
    assert_says_the_same(engines, undisturbed, name, range(len(UNSEEN)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (DraftKind.HEAD, "head_chain"),
        (DraftKind.HEAD, "ssd_head"),
        (DraftKind.BLOCK, "parallel_chain"),
        (DraftKind.BLOCK, "parallel_tree"),
    ],
)
def test_a_draft_on_the_targets_features_proposes_what_the_target_writes(
    engines: Engines, undisturbed: list[tuple[int, ...]], kind: DraftKind, name: str
) -> None:
    policy, num_rounds = make_policy(name), 0
    engine = engines.get((policy.layout, 1, kind))
    if engine is None:
        pytest.skip("disaggregated policies need two cores")
    for prompt, expected in zip(prompts(), undisturbed, strict=True):
        request = Request(prompt=prompt, max_new_tokens=NUM_TOKENS, eos_token_ids=frozenset({0}))
        generation = engine.generate(policy, request, request_id=name, sampler=Sampler())
        assert generation.tokens == expected
        num_rounds += len(generation.timeline.phase(Phase.VERIFY))
    assert num_rounds < 0.8 * sum(map(len, undisturbed))


# After the test of both targets: engines of one target are followed by those of the other.
@pytest.mark.parametrize("inflate", [INFLATED], indirect=True, ids=["inflated"], scope="module")
@pytest.mark.parametrize("name", [name for name in SPECULATIVE if POLICIES[name].layout is Layout.DISAGGREGATED])
def test_drafts_that_are_further_ahead_change_no_output(
    engines: Engines, undisturbed: list[tuple[int, ...]], name: str, inflate: str | None
) -> None:
    """An inflated target says the same, but later; one prompt is enough for that."""
    assert_says_the_same(engines, undisturbed, name, range(1))
