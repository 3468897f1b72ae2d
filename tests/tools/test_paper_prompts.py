"""The paper's prompts, from files in the format of EAGLE's."""

import json
import subprocess
import sys
from pathlib import Path

from swiftspec.artifacts.prompts import read_prompts
from tools.paper_prompts import DATASETS


def write_questions(folder: Path, *, count: int = 80) -> None:
    for name in DATASETS:
        (folder / name).mkdir(parents=True)
        questions = (
            {"question_id": number, "category": name, "turns": [f"{name} {number}?"]} for number in range(count)
        )
        (folder / name / "question.jsonl").write_text("\n".join(map(json.dumps, questions)))


def run(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.paper_prompts", str(folder), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_480_prompts_are_told_apart_by_their_data_set(tmp_path: Path) -> None:
    write_questions(tmp_path)
    done = run(tmp_path, tmp_path / "paper.jsonl")
    assert done.returncode == 0, done.stderr
    prompts = list(read_prompts(tmp_path / "paper.jsonl"))
    assert len(prompts) == 480
    assert (prompts[80].prompt_id, prompts[80].text) == ("humaneval-0", "humaneval 0?")


def test_a_data_set_that_is_not_whole_is_named(tmp_path: Path) -> None:
    write_questions(tmp_path, count=79)
    done = run(tmp_path, tmp_path / "paper.jsonl")
    assert done.returncode == 2
    assert "mt_bench/question.jsonl: 79 prompts of MT-Bench; expected 80" in done.stderr
    assert not (tmp_path / "paper.jsonl").exists()
