"""`swiftspec study latency` on a recorded plan and on a server: figures, the files it writes, and bad input."""

import json
from pathlib import Path

import pytest

from swiftspec.artifacts.workload import Workload
from swiftspec.cli.app import main
from swiftspec.studies.latency_law.document import CurveKind, Sweep
from swiftspec.studies.latency_law.sweeping import sweep
from tests.test_architecture import ROOT

pytestmark = pytest.mark.extra("plots")

PLAN = ROOT / "swiftspec/profiles/demo-sapphire-rapids-2-cores/plan.json"
SHORT = ("--prompt-tokens", "fixed:24", "--output-tokens", "fixed:24", "--requests", "80")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, Path]:
    out = tmp_path_factory.mktemp("sweep")
    flags = ("--policy", "serial_chain", "--json", str(out / "sweep.json"), "--plot", str(out / "sweep.png"))
    assert main(["study", "latency", "--plan", str(PLAN), *flags, *SHORT]) == 0
    return Sweep.load(out / "sweep.json"), out / "sweep.png"


def test_laws_are_fitted_derived_and_compared(swept: tuple[Sweep, Path]) -> None:
    document, picture = swept
    assert [policy.policy for policy in document.policies] == ["autoregressive", "serial_chain"]
    for policy in document.policies:
        curve = policy.curve
        assert len(curve.points) == 8
        assert curve.fitted.r2 > 0.95  # 20 to 80 requests a rate; the log on the latency law has 400
        assert curve.derived is not None
        assert curve.derived.c1_s == pytest.approx(curve.synchronous.e2e_s, rel=0.02)
        parts = [part.number * part.c1_s for part in curve.derived.parts]
        assert sum(parts) == pytest.approx(curve.derived.c1_s)
    (comparison,) = document.comparisons
    assert comparison.kind is CurveKind.PREDICTED
    plain, chain = (policy.curve.fitted for policy in document.policies)
    assert comparison.c1_ratio == pytest.approx(chain.c1_s / plain.c1_s)
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_lengths_are_swept_from_python(tmp_path: Path) -> None:
    path = tmp_path / "W.json"
    drawn = ("--prompt-tokens", "fixed:24", "--output-tokens", "fixed:32")
    assert main(["workload", "--arrivals", "poisson:2", "--requests", "40", *drawn, "--out", str(path)]) == 0
    document = sweep(PLAN, Workload.load(path), policy="serial_chain", num_draft_tokens=(1, 4), num_jobs=1)
    assert [policy.num_draft_tokens for policy in document.policies] == [None, 1, 4]
    assert {best.num_draft_tokens for best in document.best_lengths} <= {0, 1, 4}
    assert document.best_lengths[0].load == 0


def test_a_control_decides_how_much_is_drafted(swept: tuple[Sweep, Path], tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    flags = ("--policy", "serial_chain", "--control", "fixed:1", "--json", str(out))
    assert main(["study", "latency", "--plan", str(PLAN), *flags, *SHORT[:4], "--requests", "32"]) == 0
    (free, cut) = (
        document.policies[1].curve.saturating.metrics.tokens_per_round for document in (swept[0], Sweep.load(out))
    )
    assert 1 < cut < 2 < free


def test_the_document_is_json_with_its_schema(swept: tuple[Sweep, Path]) -> None:
    content = json.loads(swept[1].with_name("sweep.json").read_text())
    assert content["schema"] == "swiftspec.sweep"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "plan is missing; only a server can be swept without one"),
        (("--plan", str(PLAN), "--measure"), "--prompts"),
        (("--plan", str(PLAN), "--control", "magic"), "--set control is 'magic'; expected one of fixed:K"),
        (
            ("--url", "http://127.0.0.1:1", "--prompts", str(PLAN), "--policy", "pearl"),
            "policy is pearl; without a plan",
        ),
        (("--url", "http://127.0.0.1:1", "--prompts", str(PLAN)), "--url http://127.0.0.1:1: no answer"),
        (("--plan", str(PLAN), "--measure", "--url", "http://127.0.0.1:1"), "expected one of both"),
        (("--plan", str(PLAN), "--policy", "serial_chain", "--num-draft-tokens", "3,3"), "expected different whole"),
        (("--plan", str(PLAN), "--policy", "autoregressive", "--num-draft-tokens", "3"), "drafts no chain"),
        (("--plan", str(PLAN), "--policy", "magic"), "policy is 'magic'"),
        (("--plan", str(PLAN), "--experts", "8", "--active", "9"), "active is 9; expected 1 to 8"),
        (("--plan", str(PLAN), "--plot", "sweep.gif"), "--plot is sweep.gif"),
    ],
)
def test_bad_input_is_one_sentence(flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "latency", *flags]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len([line for line in errors if "error:" in line]) == 1
    assert message in " ".join(errors)
