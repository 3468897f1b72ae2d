"""`swiftspec validate --loads` and `--speeds`, from the command line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.cli.app import main

Fails = Callable[..., str]

HEAD = "model,device,devices,engine,release,input_tokens,output_tokens,concurrency,tpot_mean_ms"
ROW = "openai/gpt-oss-120b,h100-sxm,2,vllm,0.13.0,1024,1024,4,5.2"


@pytest.fixture
def loads(tmp_path: Path) -> Path:
    path = tmp_path / "loads.csv"
    path.write_text(f"{HEAD}\n{ROW}\n{ROW.replace('h100-sxm', 'h999')}\n")
    return path


@pytest.mark.extra("plots")
def test_rows_and_a_summary_are_written(loads: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, plot, frozen = tmp_path / "out.json", tmp_path / "out.png", tmp_path / "frozen.json"
    files = ["--json", str(out), "--plot", str(plot), "--freeze", str(frozen)]
    assert main(["validate", "--loads", str(loads), "--leave-out", "model", *files]) == 0
    shown = capsys.readouterr().out
    assert "h999" in shown
    assert "8192 tokens and 1024 requests a step" in shown
    content = json.loads(out.read_text())
    first, second = content["rows"]
    assert first["low_tpot_mean_ms"] < first["predicted_tpot_mean_ms"] < first["high_tpot_mean_ms"]
    assert "h999" in second["left_out"]
    assert content["summary"]["errors"]["all"]["tpot_mean_ms"]["rows"] == 1
    assert plot.stat().st_size > 1000
    assert "tpot_mean_ms" not in json.loads(frozen.read_text())["predictions"][0]


def test_speeds_have_gains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "speeds.csv"
    path.write_text(
        "cls,target,head,K,acc,gpu,gpus,quant,conc,isl,osl,tok_s_user,group\n"
        "plain dense,Qwen3-8B,,0,,H100,1,bf16,2,100,200,140,a\n"
        "EAGLE-3,Qwen3-8B,EAGLE-3,3,2.4,H100,1,bf16,2,100,200,240,a\n"
    )
    assert main(["validate", "--speeds", str(path), "--engine", "vllm@0.15", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert 1.2 < rows[1]["predicted_speedup"] < 2.4
    assert rows[1]["speedup"] == "1.714"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--engine", "vlm"], "engine is 'vlm'"),
        (["--engine", "vllm@newest"], "names no release"),
        (["--plan", "plan.json"], "expected neither"),
        (["--speeds", "other.csv"], "expected one of them"),
    ],
)
def test_options_that_do_not_go_together_are_refused(loads: Path, fails: Fails, options: list[str], says: str) -> None:
    assert says in fails("validate", "--loads", loads, *options)


def test_a_plan_needs_its_prompts(fails: Fails) -> None:
    assert "--prompts is missing" in fails("validate", "--plan", "plan.json")
    assert "--plan is missing" in fails("validate")
    assert "only for --loads" in fails("validate", "--plan", "a", "--prompts", "b", "--engine", "vllm")


def test_a_row_that_is_no_number_is_named(loads: Path, fails: Fails) -> None:
    loads.write_text(f"{HEAD}\n{ROW.replace('1024', 'long', 1)}\n")
    said = fails("validate", "--loads", loads)
    assert "loads.csv, line 2: input_tokens is 'long'" in said


@pytest.mark.parametrize(("figure", "says"), [("soon", "expected a number"), ("0", "expected more than 0")])
def test_a_measured_figure_that_is_none_is_named_by_its_row(loads: Path, fails: Fails, figure: str, says: str) -> None:
    loads.write_text(f"{HEAD}\n{ROW.replace('5.2', figure)}\n")
    said = fails("validate", "--loads", loads)
    assert "loads.csv, row 1: tpot_mean_ms is" in said
    assert says in said
