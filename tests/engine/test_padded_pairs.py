"""Pairs with one tokenizer, whose vocabularies are padded to different sizes, as those of Qwen2.5 0.5B and 72B."""

from pathlib import Path

import pytest

from swiftspec.engine.launcher import Generation, Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout, Request, make_policy
from tests.engine.conftest import start_engine, two_cores
from tests.engine.pairs import VOCAB_SIZE, references, write_pair

pytestmark = two_cores
PADDING = 63
# The last ids are of the target's padding, if it has one: no tokenizer makes them, a client may send them.
PROMPTS = ((5, 9, 11), (3, *(VOCAB_SIZE + 1,) * 4, 8), (VOCAB_SIZE + PADDING - 1,) * 2, (7,) * 140)
SAMPLERS = (Sampler(), Sampler(temperature=2.0, seed=5), Sampler(temperature=1.0, seed=7, acceptance="residual"))
POLICIES = {Layout.COLOCATED: ("serial_chain", "serial_tree", "easyspec"), Layout.DISAGGREGATED: ("swiftspec", "ssd")}


@pytest.fixture(scope="module", params=["target", "draft"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    """The one whose name it is has the padding; the other one fewer positions, too, if it is the draft."""
    folder = tmp_path_factory.mktemp("padded")
    plain = write_pair(folder / "plain", architecture="llama", max_position_embeddings=128)
    padded = write_pair(folder / "padded", architecture="llama", vocab_size=VOCAB_SIZE + PADDING)
    target, draft = (padded[0], plain[1]) if request.param == "target" else (plain[0], padded[1])
    return references((target, draft))


def prompts(pair: tuple[ModelRef, ModelRef]) -> list[tuple[int, ...]]:
    size = VOCAB_SIZE + PADDING if Path(pair[0].model).parent.name == "padded" else VOCAB_SIZE
    return [tuple(token % size for token in prompt) for prompt in PROMPTS]


def outputs(engine: Launcher, policy: str, prompt: tuple[int, ...], sampler: Sampler) -> Generation:
    request = Request(prompt=prompt, max_new_tokens=30, eos_token_ids=frozenset())
    return engine.generate(make_policy(policy), request, request_id="x", sampler=sampler)


@pytest.mark.parametrize("layout", POLICIES)
def test_such_a_pair_decodes_as_its_target_alone(pair: tuple[ModelRef, ModelRef], layout: Layout) -> None:
    with start_engine(pair, layout) as engine:
        pids = [process.pid for process in engine.processes]
        for prompt in prompts(pair):
            for sampler in SAMPLERS[: 3 if layout is Layout.COLOCATED else 2]:
                found = [outputs(engine, policy, prompt, sampler) for policy in POLICIES[layout]]
                assert all(len(each.tokens) == 30 and not each.losses for each in found)
                if sampler.acceptance == "follow":
                    assert len({each.tokens for each in found}) == 1
        assert [process.pid for process in engine.processes] == pids
