"""Destinations of outputs: stdout, pipes, devices, never over an input; and errors if nothing can be written."""

import json
import os
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from swiftspec.cli.app import main
from swiftspec.files.document import ModelRef
from tests.builders import machine_profile
from tests.cli import samples

Fails = Callable[..., str]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan that `simulate` can replay."""
    target, draft = (ModelRef(model=name, dtype="float32") for name in ("target", "draft"))
    measured = machine_profile().model_copy(update={"device": "cpu", "target": target, "draft": draft})
    measured.save(tmp_path / "profile.json")
    samples.trace(target=target, draft=draft).save(tmp_path / "trace.npz")
    samples.plan(target=target, draft=draft, folder=tmp_path).save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def simulate(arguments: str, plan: Path) -> subprocess.CompletedProcess[bytes]:
    """By a shell, which closes and redirects."""
    command = f'exec "{sys.executable}" -m swiftspec simulate --plan "{plan}" {arguments}'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", command], capture_output=True, check=False, cwd=plan.parent, env=environment)


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_json_on_stdout_is_json_alone(plan: Path, name: str) -> None:
    before = sorted(os.listdir(plan.parent))
    done = simulate(f"--json {name}", plan)
    assert done.returncode == 0
    assert json.loads(done.stdout)["policy"] == "swiftspec"
    assert b"tokens per round" in done.stderr
    assert sorted(os.listdir(plan.parent)) == before


def test_json_into_a_process(plan: Path) -> None:
    done = simulate("--json >(cat >&2)", plan)
    assert done.returncode == 0
    assert b"tokens per round" in done.stdout
    assert json.loads(done.stderr[done.stderr.index(b"{") :])["policy"] == "swiftspec"


def test_json_into_a_pipe_with_a_name(plan: Path) -> None:
    os.mkfifo(pipe := plan.parent / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    assert main(["simulate", "--plan", str(plan), "--json", str(pipe)]) == 0
    reader.join(timeout=30)
    assert json.loads(read[0])["policy"] == "swiftspec"
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize(
    ("redirected", "sentence"),
    [
        (">&-", "stdout is closed; expected it open, or redirected to /dev/null"),
        (">/dev/full", "stdout: cannot be written (No space left on device)"),
        ("--json - >/dev/full", "stdout: cannot be written (No space left on device)"),
        ("--json /dev/full >/dev/null", "/dev/full: cannot be written (No space left on device)"),
        ("--help >/dev/full", "stdout: cannot be written (No space left on device)"),
        ("<&- >&-", "stdout is closed; expected it open, or redirected to /dev/null"),
    ],
)
def test_an_output_that_takes_nothing_is_named(plan: Path, redirected: str, sentence: str) -> None:
    done = simulate(redirected, plan)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == f"swiftspec: error: {sentence}"
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_results_come_where_nothing_else_can_be_said(plan: Path, redirected: str) -> None:
    done = simulate(f"{redirected} --timeline timeline.json", plan)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"tokens per round" in done.stdout
    assert json.loads((plan.parent / "timeline.json").read_text())["traceEvents"]


def test_an_error_keeps_its_exit_code_without_stderr(plan: Path) -> None:
    plan.unlink()
    for redirected in ("2>&-", "2>/dev/full"):
        assert simulate(redirected, plan).returncode == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make devices, and only root could spoil them")
def test_a_device_as_an_output_stays_one(plan: Path) -> None:
    device = plan.parent / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.open("wb").close()
    except PermissionError:
        pytest.skip("devices may not be made here")
    for option in ("--json", "--timeline"):
        assert main(["simulate", "--plan", str(plan), option, str(device)]) == 0
    assert stat.S_ISCHR(device.stat().st_mode)


def test_one_stdout_takes_one_output(fails: Fails, plan: Path) -> None:
    sentence = fails("simulate", "--plan", plan, "--json", "-", "--timeline", "/dev/stdout")
    assert sentence.endswith("where --timeline is to be written, too")


def test_a_later_call_prints_to_stdout_again(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--plan", str(plan), "--timeline", "-"]) == 0
    assert "traceEvents" in capsys.readouterr().out
    assert main(["simulate", "--plan", str(plan)]) == 0
    assert "tokens per round" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["plan.json", "profile.json", "trace.npz", "link", "hard link"])
def test_simulate_overwrites_nothing_that_it_reads(fails: Fails, plan: Path, name: str) -> None:
    (plan.parent / "link").symlink_to("plan.json")
    (plan.parent / "hard link").hardlink_to(plan)
    before = {path.name: path.read_bytes() for path in plan.parent.iterdir()}
    for option in ("--json", "--timeline"):
        sentence = fails("simulate", "--plan", plan, option, plan.parent / name)
        assert sentence.startswith(f"{option} is {plan.parent / name}, which is read as ")
    assert {path.name: path.read_bytes() for path in plan.parent.iterdir()} == before


def _verbs(folder: Path) -> Mapping[str, Mapping[str, object]]:
    """Every verb that reads files: its options, and those among them that name what it reads."""
    pair = {"--target": folder / "target", "--draft": folder / "draft"}
    basis = {"--profile": folder / "profile.json", "--trace": folder / "trace.npz"}
    return {
        "profile": {**pair, "--out": folder / "new"},
        "trace": {**pair, "--prompts": folder / "p.jsonl", "--out": folder / "new"},
        "plan": {**pair, **basis, "--out": folder / "new"},
        "simulate": {"--plan": folder / "plan.json"},
        "run": {"--plan": folder / "plan.json", "--prompts": folder / "p.jsonl", "--secret": folder / "secret"},
        "validate": {"--plan": folder / "plan.json", "--prompts": folder / "p.jsonl"},
        "workload": {
            "--arrivals": "poisson:1",
            "--requests": 1,
            "--trace": folder / "trace.npz",
            "--out": folder / "new",
        },
        "import": {"--from": folder / "tables", "--device": "h200-sxm", "--out": folder / "new"},
        "import acceptance": {
            "--from": folder / "metrics.txt",
            "--target": "t",
            "--drafter": "d",
            "--out": folder / "new",
        },
    }


READ = {
    "profile": ("target/config.json", "draft/model.safetensors"),
    "trace": ("target/tokenizer.json", "p.jsonl"),
    "plan": ("profile.json", "trace.npz", "draft/config.json"),
    "simulate": ("plan.json",),
    "run": ("plan.json", "p.jsonl", "secret"),
    "validate": ("plan.json", "p.jsonl"),
    "workload": ("trace.npz",),
    "import": ("tables/gemm.csv",),
    "import acceptance": ("metrics.txt",),
}


@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb, names in READ.items() for name in names])
def test_no_verb_overwrites_what_it_reads(fails: Fails, tmp_path: Path, verb: str, name: str) -> None:
    for names in READ.values():
        for each in names:
            (tmp_path / each).parent.mkdir(exist_ok=True)
            (tmp_path / each).write_text("kept")
    options = [str(part) for item in _verbs(tmp_path)[verb].items() for part in item]
    sentence = fails(verb.split()[0], *options, "--json", tmp_path / name)
    assert sentence.startswith(f"--json is {tmp_path / name}, which is read as --")
    assert (tmp_path / name).read_text() == "kept"


def test_files_beside_a_plan_are_outputs_too(fails: Fails, tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    elsewhere = ["plan", "--target", "llama-3-70b", "--draft", "llama-3.2-1b", "--device", "h100-sxm", "--out", out]
    for suffix, name in ((".profile.json", "profile"), (".trace.npz", "trace")):
        side = out.with_suffix(suffix)
        assert (
            fails(*elsewhere, "--json", side)
            == f"the {name} next to --out is {side}, where --json is to be written, too"
        )
        side.mkdir()
        assert fails(*elsewhere) == f"the {name} next to --out is {side}, which cannot be written (Is a directory)"
        side.rmdir()
    (tmp_path / "x.profile.json").write_text("kept")
    sentence = fails(*elsewhere, "--trace", tmp_path / "x.profile.json")
    assert "which is read as --trace" in sentence
    assert (tmp_path / "x.profile.json").read_text() == "kept"


def test_a_report_needs_the_files_beside_a_plan(fails: Fails, tmp_path: Path) -> None:
    elsewhere = ["plan", "--target", "llama-3-70b", "--draft", "llama-3.2-1b", "--device", "h100-sxm", "--out", "-"]
    assert fails(*elsewhere, "--report", tmp_path / "r.html").startswith("--report is ")


def test_a_plan_for_elsewhere_on_stdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("swiftspec.planner.for_device.NUM_PROMPTS", 2)
    monkeypatch.setattr("swiftspec.planner.for_device.NUM_NEW_TOKENS", 32)
    pair = ["--target", "llama-3-70b", "--draft", "llama-3.2-1b", "--dtype", "fp8"]
    machine = ["--device", "h200-sxm", "--devices", "2", "--policy", "autoregressive", "--jobs", "1"]
    with pytest.MonkeyPatch.context() as patch:
        written: list[bytes] = []
        patch.setattr("swiftspec.files.writing._write_to_stdout", written.append)
        assert main(["plan", *pair, *machine, "--out", "-"]) == 0
    assert json.loads(written[0])["schema"] == "swiftspec.plan"
    assert os.listdir(tmp_path) == []


def test_help_names_the_files_beside_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "X.profile.json" in text
    assert "X.trace.npz" in text


@pytest.mark.parametrize(
    "arguments", [["--devices", "4096"], ["--inflate", "layers=1"], ["--dtype", "int4"], ["--json", "/dev/fd/9999"]]
)
def test_a_demo_that_cannot_begin_leaves_no_folder(tmp_path: Path, arguments: list[str]) -> None:
    folder = tmp_path / "demo"
    code = main(["demo", "--dir", str(folder), *arguments])
    assert code == 2
    assert not folder.exists()


def test_a_demo_keeps_a_folder_that_was_there(tmp_path: Path) -> None:
    assert main(["demo", "--dir", str(tmp_path), "--inflate", "layers=1"]) == 2
    assert tmp_path.is_dir()


@pytest.mark.extra("plots")
def test_every_figure_that_a_verb_draws_is_there() -> None:
    from swiftspec.reports import figures

    sources = (path.read_text() for path in (ROOT / "swiftspec/cli").glob("*.py"))
    drawn = {name for source in sources for name in re.findall(r'\bdraw\(.*?, "(\w+)", ', source)}
    assert len(drawn) > 5
    assert drawn <= set(figures.__all__)
