"""A head in the target's process: its requests' output is the target's own, and what it cannot do is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from swiftspec.engine.launcher import Launcher
from swiftspec.engine.model.sampling.sampler import Sampler
from swiftspec.files.document import ModelRef
from swiftspec.policies import Layout, Policy, Request, make_policy
from swiftspec.policies.effects import Role
from swiftspec.timing.timeline import Phase
from tests.engine.checkpoints import write_checkpoint
from tests.engine.conftest import start_engine
from tests.engine.heads import write_head

REQUESTS = [Request(prompt=prompt, max_new_tokens=24) for prompt in ((7, 11, 29, 3), (50,), tuple(range(1, 60)))]
POLICIES = (
    make_policy("head_chain"),
    make_policy("head_chain", num_draft_tokens=1),
    make_policy("head_tree", verify_rows=6, top_k=3, depth=2),
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    folder = tmp_path_factory.mktemp("head")
    target = write_checkpoint(folder / "target", "llama")
    head = write_head(folder / "head", target, "speculators")
    return ModelRef(model=str(target), dtype="float32"), ModelRef(model=str(head), dtype="float32")


# Ranks that wait for each other take many times as long on busy cores.
@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.alone)], ids=["whole", "ranks"])
def engine(request: pytest.FixtureRequest, pair: tuple[ModelRef, ModelRef]) -> Iterator[Launcher]:
    ranks = {Role.TARGET: request.param} if request.param > 1 else None
    with start_engine(pair, Layout.COLOCATED, ranks=ranks) as engine:
        yield engine


def tokens_of(engine: Launcher, policy: Policy, request: Request, sampler: Sampler | None = None) -> tuple[int, ...]:
    generation = engine.generate(policy, request, request_id=policy.name, sampler=sampler or Sampler())
    if policy.name != "autoregressive":
        assert any(span.phase is Phase.EXPAND and span.model is Role.DRAFT for span in generation.timeline.spans)
    return generation.tokens


@pytest.fixture(scope="module")
def alone(engine: Launcher) -> list[tuple[int, ...]]:
    """What the target says by itself."""
    return [tokens_of(engine, make_policy("autoregressive"), request) for request in REQUESTS]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_output_is_the_targets_own(engine: Launcher, alone: list[tuple[int, ...]], policy: Policy) -> None:
    assert [tokens_of(engine, policy, request) for request in REQUESTS] == alone


def test_a_drawn_output_is_that_of_its_seed(engine: Launcher) -> None:
    sampler = Sampler(temperature=0.8, seed=5)
    expected = tokens_of(engine, make_policy("autoregressive"), REQUESTS[0], sampler)
    for policy in POLICIES:
        assert tokens_of(engine, policy, REQUESTS[0], sampler) == expected


def test_draft_probabilities_are_over_the_targets_vocabulary(engine: Launcher) -> None:
    sampler = Sampler(temperature=1.0, acceptance="residual", seed=3)
    for policy in POLICIES:
        assert len(tokens_of(engine, policy, REQUESTS[0], sampler)) == 24


def test_a_policy_for_another_draft_is_refused(engine: Launcher) -> None:
    with pytest.raises(ValueError, match="policy is serial_chain, which needs a serial or parallel draft; this one is"):
        tokens_of(engine, make_policy("serial_chain"), REQUESTS[0])


def test_a_head_of_another_target_is_refused(pair: tuple[ModelRef, ModelRef], tmp_path: Path) -> None:
    target, _ = pair
    head = write_head(tmp_path / "head", Path(target.model), "eagle3", vocab_size=90)
    other = ModelRef(model=str(head), dtype="float32")
    with pytest.raises(ValueError, match="vocab_size is 90; expected 83, the target's vocabulary size"):
        start_engine((target, other), Layout.COLOCATED).close()
