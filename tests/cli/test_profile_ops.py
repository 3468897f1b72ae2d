"""`swiftspec profile`: single operations in addition to forwards, and noisy measurements."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.profile import Profile
from swiftspec.cli.app import main
from swiftspec.costmodel.op_tables import OpTables
from swiftspec.files.document import ModelRef
from swiftspec.profiler import op_benchmark
from swiftspec.profiler.noise_checks import Complaint
from swiftspec.profiler.op_timer import OpTimer
from swiftspec.profiler.pair import registered_name
from swiftspec.timing.sharing import Sharing, SharingPoint, fit_costs
from tests.builders import machine_profile

pytestmark = pytest.mark.extra("engine")

Fails = Callable[..., str]
Models = tuple[Path, Path]


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*, target: ModelRef, draft: ModelRef, **_: Any) -> Profile:
        return machine_profile().model_copy(update={"target": target, "draft": draft})

    monkeypatch.setattr("swiftspec.profiler.steps.measure_profile", measure)


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch, swept: None) -> None:
    complaints = [Complaint(1.0, "verify: slower than before"), Complaint(3.0, "expand: 8 rows in no time")]

    def complain(*_: Any, **__: Any) -> list[Complaint]:
        return sorted(complaints, reverse=True)

    monkeypatch.setattr("swiftspec.profiler.noise_checks.step_complaints", complain)


def arguments(models: Models, folder: Path, *more: str) -> list[str]:
    pair = ["--target", str(models[0]), "--draft", str(models[1])]
    return ["profile", *pair, "--dtype", "fp32", "--out", str(folder / "profile.json"), *more]


def test_operations_are_saved_beside_the_profile_and_printed(
    models: Models, tmp_path: Path, swept: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    brief = partial(OpTimer, warm_up_s=0.0, budget_s=0.0, in_a_row=1, cached_bytes=1024)
    monkeypatch.setattr("swiftspec.profiler.op_timer.OpTimer", brief)
    monkeypatch.setattr(op_benchmark, "BenchmarkGrid", partial(op_benchmark.BenchmarkGrid, rows=(1, 8), contexts=(16,)))
    assert main(arguments(models, tmp_path, "--devices", "1", "--ops", str(tmp_path / "ops.npz"))) == 0
    printed = capsys.readouterr().out
    assert "gate_up" in printed
    assert "copy's" in printed
    tables = OpTables.load(tmp_path / "ops.npz")
    assert tables.values("gemm", "framework") == ["swiftspec"]
    assert set(tables.rows("gemm", dtype="fp32")["rows"].tolist()) == {1, 8}
    assert Profile.load(tmp_path / "profile.json").num_devices


def test_operations_are_not_written_over_the_profile(fails: Fails, models: Models, tmp_path: Path) -> None:
    sentence = fails(*arguments(models, tmp_path, "--ops", str(tmp_path / "profile.json")))
    assert "where --out is to be written, too" in sentence


@pytest.mark.usefixtures("noisy")
def test_noise_on_a_cpu_is_a_note(models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(models, tmp_path, "--devices", "1")) == 0
    assert "swiftspec: noise: expand: 8 rows in no time (1 more such point)" in capsys.readouterr().err
    assert (tmp_path / "profile.json").exists()


@pytest.mark.usefixtures("noisy")
def test_noise_on_a_gpu_is_refused_unless_accepted(
    fails: Fails, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftspec.profiler.pair.num_devices_here", lambda _: 1)
    sentence = fails(*arguments(models, tmp_path, "--device", "cuda"))
    assert sentence == "expand: 8 rows in no time (1 more such point); nothing is saved, unless with --accept-noise"
    assert not (tmp_path / "profile.json").exists()
    assert main(arguments(models, tmp_path, "--device", "cuda", "--accept-noise")) == 0
    assert (tmp_path / "profile.json").exists()


def test_more_gpus_than_there_are(
    fails: Fails, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftspec.profiler.pair.num_devices_here", lambda _: 2)
    sentence = fails(*arguments(models, tmp_path, "--device", "cuda", "--devices", "3"))
    assert sentence == "--devices is 3; this machine offers 2"


@pytest.mark.parametrize(
    ("name", "registered"),
    [
        ("NVIDIA H200, 1 of them", "h200-sxm"),
        ("NVIDIA H100 80GB HBM3, 8 of them", "h100-sxm"),
        ("NVIDIA H100 PCIe, 2 of them", "h100-pcie"),
        ("NVIDIA H20-3e, 8 of them", "h20-141gb"),
        ("NVIDIA A100-SXM4-80GB, 8 of them", "a100-sxm"),
        ("NVIDIA A100-SXM4-40GB, 8 of them", "a100-sxm-40gb"),
        ("NVIDIA GeForce RTX 4090, 1 of them", "rtx-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition, 1 of them", "rtx-pro-6000"),
        ("NVIDIA GeForce RTX 3090, 1 of them", "NVIDIA GeForce RTX 3090, 1 of them"),
        ("AMD EPYC 9654, 2 cores", "AMD EPYC 9654, 2 cores"),
    ],
)
def test_a_gpu_is_known_by_its_registered_name(name: str, registered: str) -> None:
    assert registered_name(name) == registered


def test_sharing_costs_are_printed_and_written(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def measure(*, target: ModelRef, draft: ModelRef, max_sequences: int, **_: Any) -> Profile:
        asked.append(max_sequences)
        point = {"role": "target", "degree": 1, "peer_busy": False, "context": 16, "num_samples": 9}
        points = tuple(
            SharingPoint.model_validate(
                point | {"sequences": sequences, "rows": 2, "median_s": seconds, "provenance": "measured"}
            )
            for sequences, seconds in ((1, 0.010), (2, 0.0105))
        )
        sharing = Sharing(points=points, costs=fit_costs(points)) if max_sequences > 1 else None
        return machine_profile().model_copy(update={"target": target, "draft": draft, "sharing": sharing})

    monkeypatch.setattr("swiftspec.profiler.steps.measure_profile", measure)
    out = tmp_path / "out.json"
    more = ("--devices", "1", "--json", str(out))
    assert main(arguments(models, tmp_path, *more)) == 0
    assert "beyond the first" not in capsys.readouterr().out
    assert "sharing" not in json.loads(out.read_text())
    assert "sharing" not in json.loads((tmp_path / "profile.json").read_text())
    assert main(arguments(models, tmp_path, *more, "--max-sequences", "4")) == 0
    assert asked == [1, 4]
    printed = capsys.readouterr().out
    row = next(line for line in printed.partition("beyond the first")[2].splitlines() if "500.0" in line)
    assert row.split()[:6] == ["target", "1", "idle", "500.0", "0.0", "1"]
    (cost,) = json.loads(out.read_text())["sharing"]
    assert cost["sequence_s"] == pytest.approx(5e-4)
    assert cost["largest_error"] == pytest.approx(0, abs=1e-9)


def test_more_sequences_than_a_step_has_rows_are_one_sentence(models: Models, tmp_path: Path, fails: Fails) -> None:
    wrong = arguments(models, tmp_path, "--max-sequences", "65")
    assert fails(*wrong) == "--max-sequences is 65; expected 1 to 64, the rows of a step"
