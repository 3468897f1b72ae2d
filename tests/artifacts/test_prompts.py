import json
import os
import threading
from pathlib import Path

import pytest

from swiftspec.artifacts.prompts import Prompt, read_prompts, spread


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_prompts_come_in_order_with_their_ids(tmp_path: Path) -> None:
    file = write(
        tmp_path / "f.jsonl", '{"id": "first", "prompt": "a"}', "", '{"prompt": "b"}', '{"id": 7, "prompt": "c"}', ""
    )
    assert tuple(read_prompts(file)) == (
        Prompt(prompt_id="first", text="a"),
        Prompt(prompt_id="3", text="b"),
        Prompt(prompt_id="7", text="c"),
    )


def test_spec_bench_gives_its_first_turn_and_question_id(tmp_path: Path) -> None:
    line = json.dumps({"question_id": 81, "category": "writing", "turns": ["first", "second"], "reference": ["x"]})
    assert tuple(read_prompts(write(tmp_path / "f.jsonl", line))) == (Prompt(prompt_id="81", text="first"),)


def test_text_is_unchanged(tmp_path: Path) -> None:
    text = " \u2028 tab\t\r\n\U0001f600 "
    file = write(tmp_path / "f.jsonl", json.dumps({"prompt": text}, ensure_ascii=False))
    assert read_prompts(file)[0].text == text


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "not a JSON document"),
        ('["a"]', "a JSON list; expected an object"),
        ("{}", "prompt is missing"),
        ('{"prompt": ""}', "prompt is empty"),
        ('{"prompt": 3}', "prompt is 3; expected text"),
        ('{"turns": []}', r"turns is \[\]; expected a list"),
        ('{"turns": [""]}', "turns is empty"),
        ('{"turns": "text"}', "turns is 'text'; expected a list"),
        ('{"id": [], "prompt": "a"}', r"id is \[\]; expected text or a whole number"),
        ('{"id": true, "prompt": "a"}', "id is True"),
        ('{"id": "1", "prompt": "a"}', "id is '1', as in line 1"),
    ],
)
def test_error_names_file_line_and_fault(tmp_path: Path, line: str, complaint: str) -> None:
    file = write(tmp_path / "f.jsonl", '{"prompt": "fine"}', "", line)
    with pytest.raises(ValueError, match=rf"f\.jsonl, line 3: {complaint}"):
        read_prompts(file)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_file_without_prompts_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match=r"f\.jsonl: holds no prompts"):
        read_prompts(write(tmp_path / "f.jsonl", content))


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.jsonl: cannot be read \(No such file or directory\)"):
        read_prompts(tmp_path / "none.jsonl")


def test_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ValueError, match=r"f\.jsonl, line 1: not a JSON document"):
        read_prompts(tmp_path / "f.jsonl")


def test_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        Prompt(prompt_id="a", text="")


def test_a_limit_takes_prompts_from_all_over_the_file() -> None:
    prompts = [Prompt(prompt_id=str(number), text="text") for number in range(10)]
    assert [prompt.prompt_id for prompt in spread(prompts, 4)] == ["0", "2", "5", "7"]
    assert spread(prompts, 10) == spread(prompts, None) == prompts


def test_prompts_of_a_pipe_are_kept(tmp_path: Path) -> None:
    os.mkfifo(path := tmp_path / "pipe")
    writer = threading.Thread(target=lambda: path.write_text('{"prompt": "a"}\n\n{"prompt": "b"}\n'))
    writer.start()
    prompts = read_prompts(path)
    writer.join(timeout=30)
    assert [prompts[1].text, prompts[0].text, prompts[-1].text] == ["b", "a", "b"]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\n')
    assert read_prompts(tmp_path / "f.jsonl")[0].text == "a"
