"""Printed lines of plans for hardware that is not local."""

import io
import re
import sys

import pytest

from swiftspec.artifacts.plan import Acceptance, Candidate, Explored, Goal, GroupMemory, Objective, Plan, Sensitivity
from swiftspec.artifacts.profile import Collective
from swiftspec.cli.sections import show_plan
from swiftspec.policies import POLICIES, Layout
from swiftspec.policies.base import shape_of
from swiftspec.policies.effects import Role
from swiftspec.timing.latency import Provenance
from tests.artifacts.test_plan import PREDICTION, SWIFTSPEC, plan

FORMATS = {Role.TARGET: "bf16", Role.DRAFT: "bf16"}  # of a plan for a device by name

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
    ("engine", "formats", "said"),
    [
        (None, {}, "Engine: this project's own, as measured on this machine"),
        ("swiftspec", FORMATS, "Engine: swiftspec, with the op tables' kernels, the fastest all-reduce"),
        ("vllm", FORMATS, "Engine: vLLM's kernels and host time"),
        ("vllm", {}, "Engine: vLLM, as measured"),
    ],
)
def test_whose_engine_is_assumed_stands_in_the_first_three_lines(
    capsys: pytest.CaptureFixture[str], engine: str | None, formats: dict[Role, str], said: str
) -> None:
    shares = {Provenance.COMPOSED: 0.55, Provenance.ROOFLINE: 0.45}
    weak = SWIFTSPEC.model_copy(update={"prediction": PREDICTION.model_copy(update={"provenance": shares})})
    for made in (plan(), plan(chosen=weak)):
        lines = printed(capsys, made.model_copy(update={"engine": engine, "quantisation": formats}))
        assert any(line.startswith(said) for line in lines[:3]), lines[:3]


def test_what_a_choice_binds_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = Candidate.model_validate(SWIFTSPEC.model_dump() | {"policy": "ssd_head", "shape": {}})
    made = plan(chosen=chosen).model_copy(update={"feature_bytes": 24576})
    text = " ".join(printed(capsys, made))
    assert "Binds: ssd_head sends the target's hidden states to the draft, 24.6 kB for each token" in text
    assert "Binds:" not in " ".join(printed(capsys, plan()))


def test_an_interval_says_what_it_includes_and_what_it_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    errors = {"target forwards": 0.039, "acceptance": None}
    lines = printed(capsys, plan().model_copy(update={"known_errors": errors}))
    assert (
        "Predictions: 95 % intervals include the spread of prompts and the known errors of target forwards (3.9 %); "
        "the error of acceptance is unknown and not included"
    ) in " ".join(lines)
    assert not any(line.startswith("Predictions:") for line in printed(capsys, plan()))


def test_reasons_that_policies_share_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, plan().model_copy(update={"rejected": REASONS}))
    first = lines.index("Simulated 9 candidates on 2 devices, rejected 8")
    assert [line.split() for line in lines[first + 2 : first + 6]] == [
        ["too", "wide", "7"],
        ["serial_tree", "4,", "swiftspec", "3"],
        ["needs", "more", "devices", "1"],
        ["dsi", "1"],
    ]


def test_an_objective_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    goal = Goal(objective=Objective.COST, price_per_hour=2, tpot_s=4e-3, max_devices=2)
    lines = printed(capsys, plan().model_copy(update={"goal": goal}))
    told = "cost, at most 4.00 ms per token, at most 2 devices, 2 per device and hour"
    assert f"On 2 of 2 devices. Objective: {told}" in " ".join(lines)


def test_a_choice_that_does_not_fit_any_more_is_not_said_to_stand_still(capsys: pytest.CaptureFixture[str]) -> None:
    case = Sensitivity(
        change="prompts 4 x as long", tokens_per_s=0.0, best="pearl 2+1", best_tokens_per_s=80.0, changes_choice=True
    )
    lines = printed(capsys, plan().model_copy(update={"sensitivities": (case,)}))
    assert "prompts 4 x as long 80.0 does not fit pearl 2+1" in {" ".join(line.split()) for line in lines}


def test_many_reasons_are_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, plan().model_copy(update={"rejected": {f"dsi: reason {i}": 1 for i in range(20)}}))
    assert "  and 12 more" in lines


def test_shapes_stand_below_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, plan())
    (heading,) = (line for line in lines if line.startswith("  policy "))
    assert lines[lines.index(heading) + 1].split()[:2] == ["swiftspec", "1+1"]
    assert lines[lines.index(heading) + 2] == "    verify_rows=6, expand_rows=2"


def test_a_request_and_its_cost_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(printed(capsys, plan()))
    assert "First token after 100 ms, then one every 10.00 ms: 64 output tokens in 0.64 s." in text
    assert "million" not in text
    priced = plan().model_copy(update={"goal": Goal(price_per_hour=1.8)})
    # 100 tokens/s on two devices: 10,000 s of 2 x 1.8 an hour.
    assert "A million tokens cost 10.00, in the currency of the price per hour." in " ".join(printed(capsys, priced))


def test_speed_stands_against_the_number_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    cells = (cell(1, 60.0), cell(2, 100.0), cell(2, 90.0))
    rows = {" ".join(line.split()) for line in printed(capsys, plan().model_copy(update={"explored": cells}))}
    assert {"serial_tree 1 1 60.0 60.0 16.67", "serial_tree 2 2 100.0 50.0 10.00 +66.7 %"} <= rows
    priced = plan().model_copy(update={"explored": cells, "goal": Goal(price_per_hour=3.6)})
    rows = {" ".join(line.split()) for line in printed(capsys, priced)}
    assert {"serial_tree 1 1 60.0 60.0 16.67 16.67", "serial_tree 2 2 100.0 50.0 10.00 20.00 +66.7 %"} <= rows


def test_the_fewest_devices_are_said_with_what_one_fewer_does(capsys: pytest.CaptureFixture[str]) -> None:
    goal = Goal(objective=Objective.DEVICES, min_tokens_per_s=80)
    made = plan().model_copy(update={"explored": (cell(1, 60.0), cell(2, 100.0)), "goal": goal})
    told = " ".join(printed(capsys, made))
    assert "2 devices are the fewest that keep to these limits; the fastest found on 1: 60.0 tokens/s" in told
    assert "fewest" not in " ".join(printed(capsys, plan()))


def cell(num_devices: int, tokens_per_s: float) -> Explored:
    return Explored(
        policy="serial_tree",
        split=str(num_devices),
        num_devices=num_devices,
        tokens_per_s=tokens_per_s,
        tpot_s=1 / tokens_per_s,
        num_options=1,
    )


def crowded() -> Plan:
    """A plan with every policy, shapes as long as they get, and all sections."""
    candidates = []
    for name, policy_class in POLICIES.items():
        policy = max(policy_class.search_space(), key=lambda policy: len(str(shape_of(policy))))
        groups: dict[Role, tuple[int, ...]] = {Role.TARGET: tuple(range(policy.target_groups))}
        if policy.layout is Layout.DISAGGREGATED:
            groups[Role.DRAFT] = (policy.target_groups,)
        shape = shape_of(policy)
        candidates.append(Candidate(policy=name, shape=shape, groups=groups, prediction=PREDICTION))
    chosen = next(candidate for candidate in candidates if candidate.policy == "swiftspec")
    others = tuple(candidate for candidate in candidates if candidate is not chosen)
    sensitivities = tuple(
        Sensitivity(
            change=change,
            tokens_per_s=90.0,
            best=candidates[-1].describe(),
            best_tokens_per_s=95.0,
            changes_choice=index == 0,
        )
        for index, change in enumerate(("acceptance -10 %", "all-reduce +20 %", "draft forwards +20 %", "another"))
    )
    basis = "no acceptance of llama-3-70b with llama-3.2-3b is published; llama-3-70b with llama-3-8b stands in, " * 2
    return plan(chosen=chosen, alternatives=others, num_devices=8).model_copy(
        update={
            "device": "h100-sxm",
            "ties": tuple(candidate.describe() for candidate in candidates),
            "goal": Goal(price_per_hour=2.5, tpot_s=0.02, min_tokens_per_s=50),
            "acceptance": Acceptance(basis=basis, provenance=Provenance.ASSUMED),
            "explored": tuple(cell(count, 40.0 * count) for count in range(1, 9)),
            "sensitivities": sensitivities,
            "rejected": {
                f"{name}: does not fit, {index} of 72 GB on each device": 1 for index, name in enumerate(POLICIES)
            },
        }
    )


@pytest.mark.parametrize(("terminal", "columns"), [(True, 80), (True, 100), (False, 100)])
def test_no_line_is_longer_than_the_screen_and_no_word_is_broken(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns) if terminal else "250")
    monkeypatch.setattr(sys, "stdout", screen := Screen(terminal))
    made = crowded()
    show_plan(made)
    lines = screen.text.splitlines()
    assert max(map(len, lines)) <= columns
    assert len(lines) < 20 + 5 * len(POLICIES)
    whole = " ".join(screen.text.split())
    for candidate in made.candidates.values():
        assert candidate.policy in whole.split()
        assert candidate.describe().partition(" (")[2].removesuffix(")") in whole
    assert made.acceptance is not None
    assert " ".join(made.acceptance.basis.split()) in whole


class Screen(io.StringIO):
    """A terminal, or a pipe."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def text(self) -> str:
        """Without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue())


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
    assert "Warning: acceptance is known only on one task.\nChosen: " in text
    assert "Acceptance (assumed): fitted to a neighbour." in text
    assert "All-reduce of the target on 2 devices: nccl, of nccl 20.0 µs, fused 30.0 µs" in text
    assert "Memory of each of 2 devices of the target: 33.0 GB of 72.0 GB, 30.0 GB of them weights" in text
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert "acceptance -10 % 95.0 90.0 -10.0 % serial_tree 2" in rows
    assert "another device 100.0 100.0 +0.0 % still the choice" in rows
