"""`plan --device`: for hardware that is not local, by known names, op tables and synthesised acceptance."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftspec.artifacts.plan import Plan
from swiftspec.artifacts.planned import read_profile, read_trace
from swiftspec.artifacts.trace import AcceptanceTrace
from swiftspec.cli.app import main
from swiftspec.costmodel.shipped import shipped_tables
from swiftspec.files.document import ModelRef
from swiftspec.policies.effects import Role
from swiftspec.simulator.forward_errors import COMPOSED
from swiftspec.timing.latency import Provenance
from tests.cli import samples

pytestmark = pytest.mark.usefixtures("little_text")

Fails = Callable[..., str]

TARGET, DRAFT = "llama-3-8b", "llama-3.2-1b"
PAIR = ["--target", TARGET, "--draft", DRAFT]
ON_TWO = ["--device", "h800-sxm", "--devices", "2", "--jobs", "1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a plan and its files; tests that change them make a copy first."""
    made = tmp_path_factory.mktemp("elsewhere")
    files = ["--out", str(made / "plan.json"), "--report", str(made / "plan.html"), "--json", str(made / "result.json")]
    assert main(["plan", *PAIR, *ON_TWO, "--dtype", "int4", "--prompt-tokens", "96", *files]) == 0
    return made


@pytest.fixture(scope="module")
def made(folder: Path) -> Plan:
    return Plan.load(folder / "plan.json")


def replaced(pair: list[str], arguments: list[str]) -> list[str]:
    """The pair, but for what the arguments name otherwise: a second --draft would be another draft."""
    flags = zip(pair[::2], pair[1::2], strict=True)
    return [word for flag, value in flags if flag not in arguments for word in (flag, value)]


def fails_to_plan(fails: Fails, folder: Path, *arguments: object) -> str:
    """The sentence; nothing is written."""
    out = folder / "out"
    out.mkdir()
    sentence = fails("plan", *arguments, "--out", out / "plan.json", "--report", out / "plan.html")
    assert list(out.iterdir()) == []
    return sentence


def test_plan_names_machine_formats_and_what_it_rests_on(made: Plan, folder: Path) -> None:
    assert (made.device, made.num_devices) == ("h800-sxm", 2)
    assert made.quantisation == dict.fromkeys(Role, "int4")
    assert (made.target, made.draft) == (ModelRef(model=TARGET, dtype="int4"), ModelRef(model=DRAFT, dtype="int4"))
    assert made.acceptance is not None
    assert made.acceptance.provenance is Provenance.ASSUMED  # nothing is published of this pair
    assert sum(made.chosen.prediction.provenance.values()) == pytest.approx(1.0)
    assert json.loads((folder / "result.json").read_text())["device"] == "h800-sxm"
    assert (folder / "plan.html").read_text().startswith("<!DOCTYPE html>")


def test_profile_and_trace_lie_beside_the_plan(made: Plan, folder: Path) -> None:
    assert (made.profile.path, made.trace.path) == ("plan.profile.json", "plan.trace.npz")
    assert read_profile(made, folder / "plan.json").sources
    trace = read_trace(made, folder / "plan.json")
    assert (trace.source, len(trace.prompts)) == ("synthesised", 2)
    assert {(prompt.prompt_length, len(prompt.target_tokens)) for prompt in trace.prompts} == {(96, 32)}


def test_nothing_is_looked_up_in_text_that_was_made_up(made: Plan) -> None:
    assert "prompt_lookup" not in made.candidates
    assert "serial_chain" in made.candidates


def test_plan_can_be_simulated(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--timeline", str(tmp_path / "t.json"), "--json", str(tmp_path / "result.json")]
    assert main(["simulate", "--plan", str(folder / "plan.json"), *files]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on 2 traced prompts, each twice, with forwards drawn within their known error" in said
    simulated = json.loads((tmp_path / "result.json").read_text())["metrics"]
    assert simulated == Plan.load(folder / "plan.json").chosen.prediction.metrics.model_dump(mode="json")


def test_plan_names_its_engine_and_the_errors_it_knows(made: Plan) -> None:
    assert made.engine == "swiftspec"
    assert made.known_errors["acceptance"] is None
    for role in Role:  # a little of either rests on rooflines
        assert COMPOSED < (made.known_errors[f"{role} forwards"] or 0.0) < 2 * COMPOSED


def test_a_serving_engine_is_not_given_groups_that_it_cannot_run(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    command = ["plan", *PAIR, "--device", "h100-sxm", "--devices", "4", "--jobs", "1"]
    assert main([*command, "--engine", "vllm", "--out", str(out)]) == 0
    explored = Plan.load(out).explored
    assert {cell.split for cell in explored} == {"1", "2", "4"}
    assert {cell.policy for cell in explored} == {"autoregressive", "serial_chain"}, "no trees, no own devices"
    assert main([*command, "--policy", "swiftspec", "--degrees", "1", "--out", str(out)]) == 0
    assert {cell.split for cell in Plan.load(out).explored} == {"1", "1+1"}


def test_a_policy_that_the_engine_does_not_have_is_refused(fails: Fails, tmp_path: Path) -> None:
    asked = [*PAIR, "--device", "h100-sxm", "--devices", "2", "--engine", "vllm", "--policy", "swiftspec"]
    assert "swiftspec: vLLM has no draft on devices of its own" in fails_to_plan(fails, tmp_path, *asked)


@pytest.mark.parametrize(
    "arguments", [["run", "--prompt", "x"], ["validate", "--prompts", "PROMPTS"]], ids=["run", "validate"]
)
def test_plan_cannot_be_run_here(fails: Fails, folder: Path, prompts: Path, arguments: list[str]) -> None:
    verb, *more = [str(prompts) if argument == "PROMPTS" else argument for argument in arguments]
    sentence = fails(verb, "--plan", folder / "plan.json", *more)
    assert sentence == (
        f"{folder / 'plan.json'}: a plan for h800-sxm, which this machine is not; `simulate` can replay it"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--device", "h80"], "--device is 'h80'; expected one of h100-sxm, h200-sxm, "),
        (["--device", "abacus"], "--device is 'abacus'; expected one of h100-sxm, h200-sxm, "),
        (["--devices", "0"], "--devices is '0'; expected at least 1"),
        (["--devices", "17"], "--devices is 17; expected 1 to 16, which are 2 nodes of h800-sxm"),
        (["--target", "llama-3-8"], "--target is 'llama-3-8'; did you mean llama-3-8b?"),
        (["--draft", "./none"], "--draft is './none'; there is no such directory"),
        (["--draft", "qwen2-0.5b"], "--draft is qwen2-0.5b, whose vocabulary is that of qwen2; llama-3-8b needs "),
        (["--draft", TARGET], "--draft is llama-3-8b of 8.03 billion parameters; expected a smaller model than "),
        (["--draft", "llama-3-70b"], "--draft is llama-3-70b of 70.6 billion parameters; expected a smaller model"),
        (["--dtype", "int3"], "--dtype is 'int3'; did you mean int8 or int4?"),
        (["--dtype", "fp8,int3"], "--dtype is 'int3'; did you mean int8 or int4?"),
        (["--engine", "vlm"], "--engine is 'vlm'; did you mean vllm?"),
        (["--engine", "auto"], "--engine is 'auto', which is called swiftspec now"),
        (["--set", "host_ms=inf"], "--set host_ms is inf; expected a number of at least 0"),
        (["--degrees", "1,two"], "--degrees is '1,two'; expected positive numbers separated by commas, such as 1,2,4,"),
        (["--degrees", "0,1"], "--degrees is '0,1'; expected positive numbers separated by commas, such as 1,2,4,8"),
        (["--dataset", "humaneval"], "--dataset is 'humaneval'; did you mean HumanEval?"),
        (["--dataset", "GSM8K", "--trace", "t.npz"], "--dataset is GSM8K; acceptance is that of the trace t.npz"),
        (["--trace", "none.npz"], "none.npz: cannot be read (No such file or directory)"),
        (["--jobs", "rya"], "--jobs is 'rya'; did you mean ray?"),
        (["--jobs", "0"], "--jobs is 0; expected at least 1, or -1 for one per core"),
        (["--policy", "swift"], "--policy is 'swift'; did you mean swiftspec"),
        (["--policy", "pearl", "--devices", "1"], "--policy is pearl, which is disaggregated: its roles "),
        (["--prompt-tokens", "8161"], "--prompt-tokens is 8161; with 32 output tokens that is more than the 8192 "),
        (["--prompt-tokens", "0"], "--prompt-tokens is '0'; expected at least 1"),
        (["--objective", "speed"], "--objective is 'speed'; expected one of tokens-per-s, tpot, "),
        (["--objective", "cost"], "--set price_per_hour is missing; --objective cost needs "),
        (["--objective", "devices"], "--limit speed is missing; --objective devices needs a speed to reach"),
        (["--set", "price_per_hour=0"], "--set price_per_hour is 0; expected a positive number"),
        (["--limit", "speed=nan"], "--limit speed is nan; expected a positive number"),
        (["--limit", "tpot=0"], "--limit tpot is 0; expected a positive number"),
        (["--limit", "ttft=inf"], "--limit ttft is inf; expected a positive number"),
        (["--split", "4-4"], "--split is '4-4'; expected devices of the target and of the draft, such as 4+4, or 8 "),
        (["--split", "1+1,"], "--split is ''; expected devices of the target and of the draft"),
        (["--split", "2+1"], "--split is 2+1, which takes 3 devices; expected at most 2"),
        (["--output-tokens", "16385"], "--output-tokens is 16385; expected 1 to 16384"),
        (["--output-tokens", "8000"], "--prompt-tokens is 512; with 8000 output tokens that is more than the 8192 "),
        (["--acceptance", "75"], "--acceptance is 75; expected shares from 0 to 1, or tokens per round"),
        (["--acceptance", "0.9,0.5,0.2"], "--acceptance is 0.9,0.5,0.2; no draft model has such rates, "),
        (["--acceptance", "0.7", "--acceptance", "0.8"], "--acceptance is given 2 times and --draft 1 times; "),
        (["--acceptance", "0.7", "--dataset", "GSM8K"], "--acceptance is 0.7; that of dataset GSM8K is known already"),
        (["--draft", "grok-1"], "--draft is 'grok-1'; that is of an architecture that is not supported; "),
        (["--draft", "zzz"], "--draft is 'zzz'; `swiftspec list models` lists those "),
        (["--profile", "p.json"], "--profile is p.json; it cannot be given with --device"),
        (["--inflate", "layers=9"], "--inflate is layers=9; it cannot be given with --device"),
        (["--op-tables", "none.npz"], "none.npz: cannot be read (No such file or directory)"),
    ],
)  # fmt: skip  # options and the sentence, a line each
def test_mistake(fails: Fails, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    pair = replaced(PAIR, arguments)
    assert fails_to_plan(fails, tmp_path, *pair, *ON_TWO, *arguments).startswith(sentence)


@pytest.mark.parametrize(
    "flag",
    [
        "--engine",
        "--prompt-tokens",
        "--output-tokens",
        "--op-tables",
        "--dataset",
        "--acceptance",
    ],
)
def test_what_needs_a_device_says_so(fails: Fails, tmp_path: Path, flag: str) -> None:
    sentence = fails_to_plan(fails, tmp_path, *PAIR, "--devices", 2, flag, 8)
    assert sentence.startswith(f"{flag} is 8; it needs --device")


def test_without_device_and_profile(fails: Fails, tmp_path: Path) -> None:
    sentence = fails_to_plan(fails, tmp_path, *PAIR, "--devices", 2)
    assert sentence == "--profile is missing; a plan for this machine needs it, one for other hardware needs --device"


def test_what_does_not_fit_says_what_is_missing_and_what_would_help(fails: Fails, tmp_path: Path) -> None:
    large = ["--target", "llama-3-70b", "--draft", DRAFT]
    sentence = fails_to_plan(fails, tmp_path, *large, "--device", "l40s", "--devices", 1, "--jobs", 1)
    assert sentence.startswith("the target in bf16 does not fit on one l40s: ")
    assert " GB more than the 44.4 GB usable of 48.3 GB; " in sentence
    assert sentence.endswith("4 devices or int4 would help")


def test_tpot_out_of_reach_brings_the_lowest(fails: Fails, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    command = ["plan", *PAIR, *ON_TWO, "--policy", "serial_chain", "--limit", "tpot=0.1", "--out", str(out)]
    assert main(command) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert sentence.startswith("swiftspec: error: tpot_ms is 0.1; the lowest that was found is ")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_an_earlier_plan_as_it_was(fails: Fails, folder: Path, tmp_path: Path) -> None:
    earlier = shutil.copytree(folder, tmp_path / "earlier")
    before = {path: path.read_bytes() for path in earlier.iterdir()}
    large = ["--target", "llama-3-70b", "--draft", DRAFT, "--device", "l40s", "--devices", 1, "--jobs", 1]
    fails("plan", *large, "--out", earlier / "plan.json")
    assert {path: path.read_bytes() for path in earlier.iterdir()} == before


def test_files_that_would_overwrite_each_other(fails: Fails, tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    sentence = fails("plan", *PAIR, *ON_TWO, "--out", out, "--json", out)
    assert sentence == f"--json is {out}, where --out is to be written, too"


def test_op_tables_of_another_device(fails: Fails, tmp_path: Path) -> None:
    tables = shipped_tables("l40s")
    sentence = fails_to_plan(fails, tmp_path, *PAIR, *ON_TWO, "--op-tables", tables)
    assert sentence == f"{tables}: op tables of l40s; expected those of h800-sxm"


def test_a_trace_of_another_pair_is_an_assumption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace: AcceptanceTrace = samples.trace()
    trace.save(tmp_path / "trace.npz")
    command = ["plan", *PAIR, *ON_TWO, "--trace", str(tmp_path / "trace.npz"), "--policy", "serial_chain"]
    assert main([*command, "--out", str(tmp_path / "plan.json")]) == 0
    capsys.readouterr()
    made = Plan.load(tmp_path / "plan.json")
    assert made.trace.path == "trace.npz"
    assert made.acceptance is not None
    assert made.acceptance.provenance is Provenance.ASSUMED
    assert made.acceptance.basis == (
        "recorded in trace.npz, of synthetic with synthetic, which stand in for llama-3-8b with llama-3.2-1b"
    )


def test_names_are_taken_as_people_write_them_and_the_rest_as_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    command = ["plan", "--target", "meta-llama/Meta-Llama-3-8B-Instruct", "--draft", "Llama-3.2-1B", "--device", "H100"]
    command += ["--devices", "2", "--jobs", "1", "--split", "1+1", "--output-tokens", "24", "--acceptance", "0.8,0.7"]
    command += ["--set", "price_per_hour=3", "--json", str(tmp_path / "result.json"), "--out", str(out)]
    assert main(command) == 0
    told = capsys.readouterr()
    assert "--target meta-llama/Meta-Llama-3-8B-Instruct is taken to mean llama-3-8b" in told.err
    assert "--draft Llama-3.2-1B is taken to mean llama-3.2-1b" in told.err
    made = Plan.load(out)
    assert (made.device, made.target.model, made.draft.model) == ("h100-sxm", TARGET, DRAFT)
    assert {candidate.split for candidate in made.candidates.values()} == {"1+1"}
    assert made.max_new_tokens == 24
    assert made.acceptance is not None
    assert made.acceptance.provenance is Provenance.GIVEN
    assert "Acceptance (given): serial chains of 2 tokens" in " ".join(told.out.split())
    assert "acceptance is assumed" not in told.out
    assert made.acceptance.basis == "serial chains of 2 tokens are accepted up to each with 0.8,0.7"
    cost = 1e6 * 3 * 2 / 3600 / made.chosen.prediction.metrics.figures.tokens_per_s
    assert json.loads((tmp_path / "result.json").read_text())["cost_per_million_tokens"] == pytest.approx(cost)
    assert f"A million tokens cost {cost:.2f}, in the currency of the price per hour." in " ".join(told.out.split())


def test_the_best_of_several_drafts_is_planned_and_the_others_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, result = tmp_path / "plan.json", tmp_path / "result.json"
    drafts = ["--draft", DRAFT, "--draft", "llama-3.2-3b", "--acceptance", "0.3", "--acceptance", "0.9"]
    command = ["plan", "--target", TARGET, *drafts, *ON_TWO, "--policy", "serial_chain", "--json", str(result)]
    assert main([*command, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    content = json.loads(result.read_text())
    speeds = {
        name: plan["chosen"]["prediction"]["metrics"]["figures"]["tokens_per_s"]
        for name, plan in content["drafts"].items()
    }
    assert list(speeds) == [DRAFT, "llama-3.2-3b"]
    best = max(speeds, key=lambda name: speeds[name])
    assert best == "llama-3.2-3b"  # of which nine tokens in ten are accepted
    assert Plan.load(out).draft.model == content["draft"]["model"] == best
    assert read_trace(Plan.load(out), out).draft.model == read_profile(Plan.load(out), out).draft.model == best
    table = shown.split("Drafts\n")[1].split("\n\n")[0]
    for name, tokens_per_s in speeds.items():
        assert any(name in line and f"{tokens_per_s:.1f}" in line for line in table.splitlines())
    assert table.index(best) < table.index(DRAFT)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "plan.json",
        "plan.profile.json",
        "plan.trace.npz",
        "result.json",
    ]


def test_a_draft_that_cannot_be_planned_is_told_with_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts = ["--draft", DRAFT, "--draft", "llama-3.2-3b", "--acceptance", "0.2", "--acceptance", "0.95"]
    wanted = ["--policy", "serial_chain", "--limit", "speed=260"]
    assert main(["plan", "--target", TARGET, *drafts, *ON_TWO, *wanted, "--out", str(tmp_path / "plan.json")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"No plan with {DRAFT}: min_tokens_per_s is 260; the highest that was found is " in shown


def test_the_same_draft_twice(fails: Fails, tmp_path: Path) -> None:
    sentence = fails_to_plan(fails, tmp_path, *PAIR, "--draft", "Llama-3.2-1B-Instruct", *ON_TWO)
    assert sentence == f"--draft is {DRAFT} twice; expected different models"


def test_a_policy_without_a_draft_needs_none(fails: Fails, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = fails_to_plan(fails, tmp_path, "--target", TARGET, *ON_TWO)
    assert sentence.startswith("--draft is missing; only --policy autoregressive, ")
    command = ["plan", "--target", TARGET, *ON_TWO, "--policy", "autoregressive", "--out", str(tmp_path / "plan.json")]
    assert main([*command, "--report", str(tmp_path / "plan.html")]) == 0
    told = capsys.readouterr()
    page = (tmp_path / "plan.html").read_text()
    for text in (told.out, told.err, page):
        assert "llama-3.2-1b" not in text
        assert not re.search(r"(?i)warning: acceptance|draft forwards|error of acceptance", text)
    made = Plan.load(tmp_path / "plan.json")
    assert (made.chosen.policy, made.acceptance) == ("autoregressive", None)


def test_long_prompts_with_the_acceptance_of_short_ones_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--target", "llama-3.1-8b", "--draft", "eagle3", "--device", "h100", "--devices", "1", "--engine", "vllm"]
    asked += ["--jobs", "1", "--prompt-tokens", "20000", "--output-tokens", "24"]
    warning = "behind short prompts, while prompts have 20,000 tokens here"
    for more in ([], ["--load", "closed:2"], ["--load", "closed:1,2"]):
        assert main(["plan", *asked, *more]) == 0
        assert warning in " ".join(capsys.readouterr().out.split())
    assert main(["plan", *asked, "--acceptance", "0.8,0.7,0.6"]) == 0
    assert "short prompts" not in capsys.readouterr().out


def test_stages_on_several_nodes_are_not_planned_and_that_is_said(fails: Fails, tmp_path: Path) -> None:
    big = tmp_path / "big"
    big.mkdir()
    config = {"model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126}
    config |= {"num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0}
    config |= {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    (big / "config.json").write_text(json.dumps(config | {"architectures": ["LlamaForCausalLM"]}))
    asked = ["--target", str(big), "--draft", "llama-3.2-1b", "--device", "h100"]
    sentence = fails_to_plan(fails, tmp_path, *asked, "--devices", "16")
    assert (
        "does not fit on 8 h100-sxm of a node, and stages on several nodes (pipeline parallelism) are not" in sentence
    )
    assert sentence.endswith("fp8 would help")
    assert "stages" not in fails("plan", *asked, "--devices", "8")


def test_a_context_too_long_points_to_a_model_that_has_it(fails: Fails, tmp_path: Path) -> None:
    sentence = fails_to_plan(fails, tmp_path, *PAIR, *ON_TWO, "--prompt-tokens", 9000)
    assert sentence.endswith("the 8192 positions of llama-3-8b; llama-3.1-8b, of the same size, has 131072")


def test_the_page_of_a_saved_plan(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "again.html"
    assert main(["report", "--plan", str(folder / "plan.json"), "--out", str(page)]) == 0
    assert capsys.readouterr().out == f"Saved as {page}\n"
    assert page.read_text() == (folder / "plan.html").read_text()


def test_a_plan_need_not_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = tmp_path / "result.json"
    more = ["--policy", "serial_chain", "--prompt-tokens", "96", "--jobs", "1", "--json", str(result)]
    assert main(["plan", *PAIR, *ON_TWO, *more]) == 0
    said = capsys.readouterr()
    assert "For llama-3-8b in bf16 with llama-3.2-1b in bf16" in said.out
    assert "This plan is not saved; --out FILE saves it" in said.err
    assert json.loads(result.read_text())["plan"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
