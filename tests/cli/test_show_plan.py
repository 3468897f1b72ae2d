"""What `plan` prints of plans for machines that are not at hand."""

import pytest

from swiftspec.commands.showing import show_plan
from swiftspec.latency import Provenance
from swiftspec.plan import Acceptance, Goal, GroupMemory, Objective, Plan, Sensitivity
from swiftspec.policies.effects import Role
from swiftspec.profile import Collective
from tests.test_plan import PREDICTION, SWIFTSPEC, plan

REASONS = {"swiftspec: too wide": 3, "serial_tree: too wide": 4, "dsi: needs more devices": 1}


def printed(capsys: pytest.CaptureFixture[str], made: Plan) -> list[str]:
    show_plan(made)
    return capsys.readouterr().out.splitlines()


def test_a_plan_without_measurements_says_so_first(capsys: pytest.CaptureFixture[str]) -> None:
    shares = {Provenance.COMPOSED: 0.55, Provenance.ROOFLINE: 0.25, Provenance.ASSUMED: 0.2}
    weak = SWIFTSPEC.model_copy(update={"prediction": PREDICTION.model_copy(update={"provenance": shares})})
    first = printed(capsys, plan(chosen=weak))[0]
    assert first == "An estimate: 45.0 % of the predicted time rests on no measurement (roofline or assumed)."
    assert printed(capsys, plan())[1].startswith("Chosen: swiftspec 1+1")


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (None, "Engine: this project's own, as measured on this machine"),
        ("auto", "Engine: auto, which is nobody's serving engine: kernels as the op tables have them"),
        ("vllm", "Engine: vLLM's kernels, and its time around them"),
    ],
)
def test_whose_engine_is_assumed_stands_in_the_first_three_lines(
    capsys: pytest.CaptureFixture[str], engine: str | None, said: str
) -> None:
    shares = {Provenance.COMPOSED: 0.55, Provenance.ROOFLINE: 0.45}
    weak = SWIFTSPEC.model_copy(update={"prediction": PREDICTION.model_copy(update={"provenance": shares})})
    for made in (plan(), plan(chosen=weak)):
        lines = printed(capsys, made.model_copy(update={"engine": engine}))
        assert any(line.startswith(said) for line in lines[:3]), lines[:3]


def test_an_interval_says_what_it_includes_and_what_it_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    errors = {"target forwards": 0.039, "acceptance": None}
    lines = printed(capsys, plan().model_copy(update={"known_errors": errors}))
    assert (
        "Predictions: 95 % intervals include the spread of prompts and the known errors of target forwards (3.9 %); "
        "the error of acceptance is not known, and not in them"
    ) in lines
    assert not any(line.startswith("Predictions:") for line in printed(capsys, plan()))


def test_reasons_that_policies_share_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, plan().model_copy(update={"rejected": REASONS}))
    assert lines[-4:-1] == [
        "Simulated 9 candidates on 2 devices, rejected 8:",
        "  7 of serial_tree and swiftspec: too wide",
        "  1 of dsi: needs more devices",
    ]


def test_an_objective_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    goal = Goal(objective=Objective.COST, price_per_hour=2, max_tpot_s=4e-3, max_devices=2)
    lines = printed(capsys, plan().model_copy(update={"goal": goal}))
    told = "cost, at most 4.00 ms per token, at most 2 devices, 2 per device and hour"
    assert f"On 2 of 2 devices. Objective: {told}" in lines


def test_a_choice_that_does_not_fit_any_more_is_not_said_to_stand_still(capsys: pytest.CaptureFixture[str]) -> None:
    case = Sensitivity(
        change="prompts 4 x as long", tokens_per_s=0.0, best="pearl 2+1", best_tokens_per_s=80.0, changes_choice=True
    )
    lines = printed(capsys, plan().model_copy(update={"sensitivities": (case,)}))
    assert "prompts 4 x as long 80.0 does not fit pearl 2+1" in {" ".join(line.split()) for line in lines}


def test_many_reasons_are_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, plan().model_copy(update={"rejected": {f"dsi: reason {i}": 1 for i in range(20)}}))
    assert lines[-2] == "  12 for 12 other reasons"


def test_shapes_stand_behind_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, plan())
    (heading,) = (line for line in lines if line.startswith("  policy "))
    row = lines[lines.index(heading) + 1]
    assert row[heading.index("shape") :] == "verify_rows=6, expand_rows=2"


def test_two_nodes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    made = plan().model_copy(update={"device": "h100-sxm", "num_devices": 9})
    assert any(line.startswith("Nodes of 8 devices: a forward is divided within one") for line in printed(capsys, made))


def test_machine_and_sensitivities_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    made = plan().model_copy(
        update={
            "acceptance": Acceptance(
                basis="fitted to a neighbour", provenance=Provenance.ASSUMED, warning="known only on one task"
            ),
            "collectives": (
                Collective(role=Role.TARGET, degree=2, implementation="nccl", seconds={"nccl": 2e-5, "fused": 3e-5}),
            ),
            "memory": (
                GroupMemory(
                    devices=(0, 1),
                    weights_bytes={Role.TARGET: 30 * 10**9},
                    kv_bytes={Role.TARGET: 10**9},
                    reserve_bytes=2 * 10**9,
                    usable_bytes=72 * 10**9,
                ),
            ),
            "sensitivities": (
                Sensitivity(
                    change="acceptance -10 %",
                    tokens_per_s=90.0,
                    best="serial_tree 2",
                    best_tokens_per_s=95.0,
                    changes_choice=True,
                ),
                Sensitivity(
                    change="another device",
                    tokens_per_s=100.0,
                    best="swiftspec 1+1",
                    best_tokens_per_s=100.0,
                    changes_choice=False,
                ),
            ),
        }
    )
    text = "\n".join(printed(capsys, made))
    assert "Warning: acceptance is known only on one task\nAcceptance (assumed): fitted to a neighbour" in text
    assert "All-reduce of the target on 2 devices: nccl, of nccl 0.020 ms, fused 0.030 ms" in text
    assert "Memory of each of 2 devices of the target: 33.0 GB of 72.0 GB, 30.0 GB of them weights" in text
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert {"acceptance -10 % 95.0 90.0 serial_tree 2", "another device 100.0 100.0 still the choice"} <= rows
