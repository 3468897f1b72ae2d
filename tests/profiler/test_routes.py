"""Experts of a small mixture: recorded with a trace, counted for a profile, and printed."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from swiftspec.artifacts.profile import Profile
from swiftspec.artifacts.routes import ExpertsTouched, TouchedPoint
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli import console
from swiftspec.cli.profile import show_profile
from swiftspec.cli.trace import show_trace
from swiftspec.costmodel.measured_routing import measured_routing
from swiftspec.engine.model.forward_batch import Chunk, ForwardBatch, Rows
from swiftspec.engine.model.runner import ModelRunner
from swiftspec.files.document import ModelRef
from swiftspec.models.inflation import inflated_spec
from swiftspec.policies import Request
from swiftspec.policies.effects import ForwardKind, Row
from swiftspec.profiler.acceptance import record_trace
from swiftspec.profiler.programs import verified_rows
from swiftspec.profiler.steps import experts_touched
from tests.artifacts.test_profile import profile, step
from tests.engine.pairs import references, write_pair


@pytest.fixture(autouse=True)
def results_on_stdout() -> None:
    console.begin()  # a test before this one may have sent results to stderr


pytestmark = pytest.mark.usefixtures("one_thread")

PROMPTS = (("a", (5, 17, 3)), ("b", (9,)))
NUM_LAYERS, NUM_EXPERTS, NUM_ACTIVE = 3, 6, 2
INFLATE = f"layers={NUM_LAYERS},experts={NUM_EXPERTS},active={NUM_ACTIVE}"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRef, ModelRef]:
    return references(write_pair(tmp_path_factory.mktemp("pair"), architecture="llama"), inflate=INFLATE)


@pytest.fixture(scope="module")
def trace(pair: tuple[ModelRef, ModelRef]) -> AcceptanceTrace:
    target, draft = pair
    return record_trace(
        target=target,
        draft=draft,
        prompts=PROMPTS,
        max_new_tokens=70,  # more rows than a recorder's forward has
        num_candidates=3,
        num_threads=1,
        progress=lambda *_: None,
    )


@torch.inference_mode()
def one_by_one(target: ModelRef, prompt: Sequence[int], output: Sequence[int]) -> np.ndarray:
    """Experts of the rows that predict an output, each computed alone after a prefill of all but the prompt's last."""
    model = ModelRunner.load(target, max_context=100, tree_slots=4)
    if len(prompt) > 1:
        model.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, tuple(prompt[:-1])),)))
    routes = []
    for place, token in enumerate([prompt[-1], *output[:-1]]):
        model.forward(ForwardBatch(ForwardKind.EXACT, (Rows(0, (Row(token, len(prompt) - 1 + place, 0),)),)))
        model.keep(0, (0,), 1)
        chosen = model.routes()
        assert chosen is not None
        assert chosen.shape == (NUM_LAYERS, 1, NUM_ACTIVE)
        routes.append(chosen[:, 0].numpy())
    return np.stack(routes)


def test_recorded_routes_are_those_of_single_rows(pair: tuple[ModelRef, ModelRef], trace: AcceptanceTrace) -> None:
    assert trace.num_experts == NUM_EXPERTS
    for (_, prompt), traced in zip(PROMPTS, trace.prompts, strict=True):
        output = traced.target_tokens.tolist()
        assert traced.routes is not None
        assert traced.routes.shape == (len(output), NUM_LAYERS, NUM_ACTIVE)
        assert traced.routes.dtype == np.uint8
        np.testing.assert_array_equal(np.sort(traced.routes), np.sort(one_by_one(pair[0], prompt, output)))


def test_a_mixture_of_a_dense_model_has_its_output(pair: tuple[ModelRef, ModelRef], trace: AcceptanceTrace) -> None:
    target, draft = pair
    dense = record_trace(
        target=target.model_copy(update={"inflate": None}),
        draft=draft,
        prompts=PROMPTS[:1],
        max_new_tokens=20,
        num_candidates=3,
        num_threads=1,
        progress=lambda *_: None,
    )
    assert (dense.num_experts, dense.prompts[0].routes) == (0, None)
    output = dense.prompts[0].target_tokens
    np.testing.assert_array_equal(output, trace.prompts[0].target_tokens[: len(output)])


def test_a_trace_says_how_many_experts_its_tokens_touch(
    trace: AcceptanceTrace, capsys: pytest.CaptureFixture[str]
) -> None:
    show_trace(trace)
    printed = " ".join(capsys.readouterr().out.split())
    measured = measured_routing(trace, file="")
    assert measured is not None
    assert f"Experts of a layer's 6 that 1, 2, 4, 8, 16 consecutive tokens touch: 2.00, {measured.touched[1]:.2f}," in (
        printed
    )
    assert f"c = {measured.correlation:.3f}, which misses them by at most" in printed


def test_experts_of_verifications_are_counted(pair: tuple[ModelRef, ModelRef]) -> None:
    target, _ = pair
    experts = inflated_spec(target).experts
    assert experts is not None
    prompts, row_counts = [(5, 17, 3, 8), (40, 2)], (1, 3, 8)
    touched = experts_touched(target, experts, prompts, row_counts)
    assert (touched.num_experts, touched.num_active) == (NUM_EXPERTS, NUM_ACTIVE)
    by_rows = touched.by_rows()
    assert list(by_rows) == [1, 3, 8]
    assert by_rows[1] == NUM_ACTIVE < by_rows[3] <= by_rows[8] <= NUM_EXPERTS
    for rows in row_counts:
        counts = [
            len(np.unique(layer))
            for prompt in prompts
            for turn in range(4)
            for layer in routes_of(target, prompt, rows, turn)
        ]
        assert by_rows[rows] == pytest.approx(np.mean(counts))


@torch.inference_mode()
def routes_of(target: ModelRef, prompt: tuple[int, ...], num_rows: int, turn: int) -> np.ndarray:
    """Experts of a chain of rows, [layers, rows, active], computed as a prompt."""
    model = ModelRunner.load(target, max_context=100, tree_slots=4)
    rows = verified_rows(Request(prompt=prompt, max_new_tokens=1), num_rows, turn=turn)
    model.forward(ForwardBatch(ForwardKind.EXACT, (Chunk(0, (*prompt, *(row.token for row in rows))),)))
    routes = model.routes()
    assert routes is not None
    return routes[:, -num_rows:].numpy()


def test_a_profile_shows_experts_beside_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    points = tuple(
        TouchedPoint(rows=rows, experts=experts) for rows, experts in ((1, 2.0), (2, 3.0), (4, 4.5), (8, 5.5))
    )
    steps = [step(point.rows, 64, 0.010 + 0.001 * point.experts) for point in points]
    touched = ExpertsTouched(num_experts=NUM_EXPERTS, num_active=NUM_ACTIVE, points=points)
    profile(steps).model_copy(update={"experts_touched": touched}).save(tmp_path / "profile.json")
    measured = Profile.load(tmp_path / "profile.json")
    assert measured.experts_touched == touched
    show_profile(measured)
    lines = capsys.readouterr().out
    assert "Experts of a layer's 6 that a verification touches" in lines
    assert "1 idle" in lines
    assert "4.50" in lines
    assert "ms for each expert touched" in " ".join(lines.split())
    assert "experts_touched" not in profile(steps).to_json()


@pytest.mark.parametrize(
    ("points", "sentence"),
    [
        ([(4, 4.0), (1, 2.0)], "points is out of order; expected ascending rows"),
        ([(1, 1.5)], "points holds 1.5 experts; expected 2 to 6"),
        ([(1, 2.0), (4, 6.5)], "points holds 6.5 experts; expected 2 to 6"),
    ],
)
def test_experts_that_cannot_be_are_refused(points: list[tuple[int, float]], sentence: str) -> None:
    values = {
        "num_experts": NUM_EXPERTS,
        "num_active": NUM_ACTIVE,
        "points": [{"rows": rows, "experts": experts} for rows, experts in points],
    }
    with pytest.raises(ValueError, match=sentence):
        ExpertsTouched.checked(values, source="profile")
