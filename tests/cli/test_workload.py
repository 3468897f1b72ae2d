"""`swiftspec workload`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swiftspec.artifacts.workload import RequestClass, Workload
from swiftspec.cli.app import main
from swiftspec.cli.workload import parse_class
from tests.cli import samples
from tests.cli.tokenizer_files import write_byte_tokenizer
from tests.workload import samples as load_samples
from tests.workload.samples import written

Fails = Callable[..., str]
LENGTHS = ("--prompt-tokens", "lognormal:200:0.5", "--output-tokens", "fixed:96")
POISSON = ("--arrivals", "poisson:2", "--requests", "500", *LENGTHS)


def made(folder: Path, *arguments: object) -> Workload:
    assert main(["workload", *map(str, arguments), "--out", str(folder / "w.json")]) == 0
    return Workload.load(folder / "w.json")


def cells(text: str, first: str) -> list[str]:
    """Words of the line that begins with this one."""
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [first]]
    return line.split()[1:]


def test_a_workload_is_written_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(tmp_path, *POISSON, "--class", "interactive:ttft=500,tpot=50", "--seed", 1)
    assert (len(found.requests), found.rate, found.seed) == (500, 2.0, 1)
    assert found.classes == (RequestClass(name="interactive", ttft_s=0.5, tpot_s=0.05),)
    text = capsys.readouterr().out
    assert cells(text, "arrivals") == ["poisson:2"]
    assert cells(text, "rate") == ["2", "requests/s", "over", "250", "s"]
    assert cells(text, "prompts") == ["lognormal:200:0.5"]
    prompts = sorted(request.prompt_tokens for request in found.requests)
    mean, median = sum(prompts) / 500, (prompts[249] + prompts[250]) / 2
    lengths = [f"{mean:.0f}", f"{median:.0f}", "96", "96"]
    assert cells(text, "interactive") == ["500", "100.0", "%", "500", "50.00", *lengths]
    assert text.endswith(f"\nSaved as {tmp_path / 'w.json'}\n")
    assert max(map(len, text.splitlines())) <= 100


def test_several_classes_are_summed_up_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(tmp_path, *POISSON, "--class", "chat:share=0.3,tpot=50", "--class", "batch")
    assert found.num_by_class == {"chat": 150, "batch": 350}
    text = capsys.readouterr().out
    assert cells(text, "chat")[:5] == ["150", "30.0", "%", "-", "50.00"]
    assert cells(text, "all")[:5] == ["500", "100.0", "%", "-", "-"]


def test_the_summary_is_there_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, *POISSON, "--class", "chat:tpot=50", "--json", "-")
    summary = json.loads(capsys.readouterr().out)
    assert (summary["num_requests"], summary["rate"], summary["duration_s"]) == (500, 2.0, 250.0)
    assert (summary["arrivals"], summary["trace"]) == ("poisson:2", None)
    assert summary["gap_cv"] == pytest.approx(1.0, abs=0.15)
    assert summary["output_tokens"] == {"mean": 96.0, "median": 96.0}
    (chat,) = summary["classes"]
    assert (chat["name"], chat["ttft_s"], chat["tpot_s"], chat["num_requests"]) == ("chat", None, 0.05, 500)
    assert chat["prompt_tokens"] == summary["prompt_tokens"]


def test_a_closed_loop_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(tmp_path, "--arrivals", "closed:8", "--requests", 20, *LENGTHS)
    assert (found.is_closed, found.arrivals.num_clients) == (True, 8)
    text = capsys.readouterr().out
    assert cells(text, "rate") == ["set", "by", "the", "ends", "of", "requests"]
    assert cells(text, "gaps") == ["-"]


def test_a_load_trace_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, "b.csv", load_samples.BURSTGPT)
    found = made(tmp_path, "--from", "burstgpt", trace, "--set", "rate=3", "--class", "chat:ttft=500")
    assert (len(found.requests), found.rate) == (3, 3.0)
    text = capsys.readouterr().out
    assert cells(text, "arrivals") == ["replayed", "from", "b.csv", "(burstgpt)"]
    assert cells(text, "outputs") == ["as", "recorded"]
    assert "Left out: 1 row without output tokens\n" in text
    assert "Licence: CC-BY 4.0, github.com/HPMLL/BurstGPT" in text


def test_a_part_of_a_load_trace_is_replayed(tmp_path: Path) -> None:
    trace = written(tmp_path, "m.jsonl", load_samples.MOONCAKE)
    found = made(tmp_path, "--from", "mooncake", trace, "--set", "start_s=3,duration_s=5", "--requests", 2)
    assert [request.arrival_s for request in found.requests] == pytest.approx([0.0, 2.999])


def test_requests_name_prompts_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples.trace().save(tmp_path / "trace.npz")
    found = made(tmp_path, "--arrivals", "constant:1", "--requests", 3, "--trace", tmp_path / "trace.npz")
    assert {(each.prompt_id, each.prompt_tokens, each.output_tokens) for each in found.requests} == {("a", 5, 4)}
    text = capsys.readouterr().out
    assert cells(text, "prompts") == ["those", "of", "trace.npz"]
    assert cells(text, "outputs") == ["those", "of", "the", "prompts"]


@pytest.mark.extra("engine")
def test_requests_name_prompts_of_a_file_that_a_model_counts(tmp_path: Path) -> None:
    prompts = written(tmp_path, "p.jsonl", '{"id": "x", "prompt": "hello"}\n')
    model = write_byte_tokenizer(tmp_path / "model")
    files = ("--prompts", prompts, "--tokenizer", model, "--output-tokens", "fixed:7")
    found = made(tmp_path, "--arrivals", "poisson:1", "--requests", 2, *files)
    assert {(each.prompt_id, each.prompt_tokens, each.output_tokens) for each in found.requests} == {("x", 5, 7)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chat", RequestClass(name="chat")),
        ("chat:ttft=500", RequestClass(name="chat", ttft_s=0.5)),
        ("chat:share=0.3,tpot=50,ttft=2e3", RequestClass(name="chat", ttft_s=2.0, tpot_s=0.05, share=0.3)),
    ],
)
def test_classes_have_limits_in_milliseconds(text: str, expected: RequestClass) -> None:
    assert parse_class(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", ", without a name; expected NAME, or NAME:ttft=MS,tpot=MS,share=SHARE with any of these"),
        (":ttft=5", ", without a name; expected NAME"),
        ("chat:", "; expected NAME"),
        ("chat:e2e=5", "; expected NAME"),
        ("chat:ttft", ", where ttft is ''; expected a number"),
        ("chat:ttft=5,ttft=6", "; expected NAME"),
        ("chat:ttft=soon", ", where ttft is 'soon'; expected a number"),
        ("chat:ttft=0", ": ttft_s is 0.0; input should be greater than 0"),
        ("chat:tpot=-5", ": tpot_s is -0.005; input should be greater than 0"),
        ("chat:tpot=nan", ": tpot_s is nan; input should be a finite number"),
        ("chat:share=1.5", ": share is 1.5; input should be less than or equal to 1"),
        ("a chat", ": name is 'a chat'; string should match pattern"),
    ],
)
def test_a_class_that_cannot_be_is_one_sentence(fails: Fails, tmp_path: Path, text: str, complaint: str) -> None:
    sentence = fails("workload", *POISSON, "--class", text, "--out", tmp_path / "w.json")
    assert sentence.startswith(f"--class is {text!r}{complaint}")
    assert not (tmp_path / "w.json").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "--arrivals is missing; expected poisson:RATE, gamma:RATE:SHAPE, constant:RATE or closed:CLIENTS, or --f"),
        (["--arrivals", "poisson:2"], "--requests is missing; expected the number of requests"),
        (["--arrivals", "poisson:2", "--requests", "0"], "--requests is '0'; expected at least 1"),
        (["--arrivals", "poisson:2", "--requests", "60000", *LENGTHS], "--requests is 60000; expected 1 to 50000"),
        (["--arrivals", "poisson:2", "--requests", "5"], "--prompt-tokens is missing; expected fixed:TOKENS"),
        (
            ["--arrivals", "poisson:2", "--requests", "5", *LENGTHS[:2]],
            "--output-tokens is missing; expected fixed:TOKENS",
        ),
        (["--arrivals", "bursty:2", "--requests", "5", *LENGTHS], "--arrivals is 'bursty:2'; expected poisson:RATE"),
        (["--arrivals", "poisson:0", "--requests", "5", *LENGTHS], "--arrivals is 'poisson:0': rate is '0'; input sho"),
        ([*POISSON, "--output-tokens", "fixed:0"], "--output-tokens is 'fixed:0': tokens is '0'; input should be gr"),
        ([*POISSON, "--set", "rate=2"], "--set rate is 2.0; it needs --from, which names a load trace"),
        ([*POISSON, "--tokenizer", "m"], "--tokenizer is m; it needs --prompts, whose tokens it counts"),
        ([*POISSON, "--class", "a:share=0.7", "--class", "b:share=0.7"], "shares of classes add up to 1.4; expect"),
        ([*POISSON, "--class", "a", "--class", "a"], "classes has 'a' 2 times; expected every name once"),
        (["--from", "azure", "none.csv", "--seed", "-1"], "--seed is '-1'; expected at least 0"),
        (["--from", "sharegpt", "f"], "--from is 'sharegpt'; expected one of azure, burstgpt, mooncake, adaserve"),
        (["--from", "azure", "/none.csv"], "/none.csv: cannot be read (No such file or directory)"),
        (
            ["--from", "azure", "f", "--arrivals", "poisson:2"],
            "--arrivals is poisson:2; arrivals and lengths are those of the file that --from names",
        ),
        (["--from", "azure", "f", "--set", "start_s=-1"], "--set start_s is -1; expected a number of at least 0"),
        (["--from", "azure", "f", "--set", "duration_s=0"], "--set duration_s is 0; expected more than 0"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(
    fails: Fails, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    sentence = fails("workload", *arguments, "--out", tmp_path / "w.json")
    assert sentence.startswith(complaint)
    assert not (tmp_path / "w.json").exists()


def test_a_load_trace_has_a_format_and_a_file(fails: Fails, tmp_path: Path) -> None:
    assert fails("workload", "--out", tmp_path / "w.json", "--from", "azure").startswith("Option '--from' requires 2")


@pytest.mark.parametrize(
    ("arguments", "content", "complaint"),
    [
        ((), "Timestamp,Request tokens\n", "{}, line 1: column TIMESTAMP is missing; expected TIMESTAMP, Conte"),
        ((), "TIMESTAMP,ContextTokens,GeneratedTokens\n", "{}: no request arrives from 0 s on; expected at least one"),
        (("--set", "rate=0"), load_samples.AZURE, "--set rate is 0; expected 0.0001 to 1e+06 requests per second"),
        (
            (),
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01,1,1\n2024-05-10,1,1\n",
            "{}, line 3: TIMESTAMP is 1 s before that of the row above; expected rows in order of time",
        ),
    ],
)
def test_a_load_trace_that_cannot_be_replayed_is_one_sentence(
    fails: Fails, tmp_path: Path, arguments: tuple[Any, ...], content: str, complaint: str
) -> None:
    trace = written(tmp_path, "f.csv", content)
    sentence = fails("workload", "--from", "azure", trace, *arguments, "--out", tmp_path / "w.json")
    assert sentence.startswith(complaint.format(trace))


def test_prompts_need_a_model_and_one_source(fails: Fails, tmp_path: Path) -> None:
    prompts = written(tmp_path, "p.jsonl", '{"prompt": "x"}\n')
    process = ("--arrivals", "poisson:2", "--requests", 3, "--out", tmp_path / "w.json")
    assert fails("workload", *process, "--prompts", prompts).startswith("--tokenizer is missing; --prompts needs a mod")
    both = fails("workload", *process, "--prompts", prompts, "--trace", tmp_path / "t.npz")
    assert both.startswith(f"--trace is {tmp_path / 't.npz'}, but prompts are those of --prompts")


def test_a_load_trace_is_not_overwritten(fails: Fails, tmp_path: Path) -> None:
    trace = written(tmp_path, "f.csv", load_samples.AZURE)
    sentence = fails("workload", "--from", "azure", trace, "--out", trace)
    assert sentence.startswith(f"--out is {trace}, which is read as --from; expected another file")
    assert trace.read_text() == load_samples.AZURE


def test_a_field_of_a_file_is_not_called_a_flag(fails: Fails, tmp_path: Path) -> None:
    content = json.loads(load_samples.workload().to_json())
    content["requests"][0]["output_tokens"] = 0
    path = written(tmp_path, "w.json", json.dumps(content))
    prompts = written(tmp_path, "p.jsonl", '{"prompt": "a"}\n')
    said = fails("loadtest", "--url", "http://127.0.0.1:9", "--load", str(path), "--prompts", str(prompts))
    assert said.startswith(f"{path}: requests[0].output_tokens is 0; input should be greater than")


def test_what_prompts_share_is_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shares = ("--set", "turns=4,think_time_s=2,system_prompt_tokens=300,system_prompts=2")
    found = made(tmp_path, *POISSON, *shares, "--json", "-")
    said = capsys.readouterr()
    summary = json.loads(said.out)
    assert summary["repeated_share"] == found.repeated_share > 0.6
    assert found.requests[1].think_time_s == 2
    assert {name for each in found.requests for name, _ in each.shared[:1]} == {"system-0", "system-1"}
    assert "125 conversations, whose turns wait for answers" in " ".join(said.err.split())


def test_stages_need_no_number_of_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(tmp_path, "--arrivals", "gamma:2x30,8x10:0.5", "--set", "distinct_prompts=5", *LENGTHS)
    assert len(found.requests) == 140
    assert found.duration_s == pytest.approx(40.0)
    text = capsys.readouterr().out
    assert cells(text, "arrivals") == ["gamma:2x30,8x10:0.5"]
    assert "of the prompts' tokens are those of earlier requests" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((*POISSON, "--set", "think_time_s=3"), "--set think_time_s is 3.0; it needs turns, too"),
        ((*POISSON, "--set", "system_prompts=3"), "--set system_prompts is 3; it needs system_prompt_tokens, too"),
        (
            (*POISSON, "--set", "turns=3,distinct_prompts=2"),
            "--set distinct_prompts is 2; all 3 turns of a conversation",
        ),
        (("--arrivals", "poisson:2x9", "--requests", 5, *LENGTHS), "--requests is 5, but the stages poisson:2x9 set"),
        (("--arrivals", "poisson:2x", *LENGTHS), "--arrivals is 'poisson:2x': seconds is ''"),
        (("--arrivals", "closed:2x9", *LENGTHS), "--arrivals is 'closed:2x9'; expected poisson:RATE"),
        (
            ("--arrivals", "poisson:2", "--requests", 5, "--trace", "t.npz", "--set", "turns=2"),
            "--set turns is 2, but prompts are those of t.npz",
        ),
        (("--from", "azure", "f", "--set", "turns=2"), "--set turns is 2; arrivals and lengths are those of the file"),
    ],
)
def test_what_cannot_be_shared_is_one_sentence(
    fails: Fails, tmp_path: Path, arguments: tuple[object, ...], complaint: str
) -> None:
    assert fails("workload", *arguments, "--out", tmp_path / "w.json").startswith(complaint)
