from pathlib import Path
from statistics import median

import pytest

from swiftspec.acceptance.lengths import unconditional_rates
from swiftspec.acceptance.usual import usual_rates
from swiftspec.api import compare_kinds
from swiftspec.engines import engine_named
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.planner.deployment import Deployment
from swiftspec.validation.published import DATA
from swiftspec.validation.published.comparison import Comparison, LeaveOut
from swiftspec.validation.published.rows import MeasuredRow, UnpredictedError, text_requests
from swiftspec.validation.published.speeds import compare_speeds, read_speed_rows, user_speed

HEAD = "cls,target,head,K,acc,pos,quant,gpu,gpus,par,engine,conc,isl,osl,tok_s_user,group,standin"
PLAIN = "plain dense,Qwen3-32B,,0,,,bf16,H100,1,TP1,vLLM 0.15.1,8,76,256,28,one,"
DRAFTED = 'draft chain,Qwen3-32B,Qwen3-1.7B,3,2.8,"[0.76, 0.58, 0.46]",bf16,H100,1,TP1,vLLM 0.15.1,8,76,256,60,one,'


def written(folder: Path, *lines: str) -> Path:
    path = folder / "speeds.csv"
    path.write_text("\n".join((HEAD, *lines)) + "\n")
    return path


def row(folder: Path, line: str) -> MeasuredRow:
    ((_, found),) = read_speed_rows(written(folder, line), engine=None)
    assert isinstance(found, MeasuredRow), found
    return found


def test_a_chain_of_a_draft_model(tmp_path: Path) -> None:
    found = row(tmp_path, DRAFTED)
    assert found.drafting is not None
    assert found.drafting.draft is not None
    assert (found.drafting.draft.name, found.drafting.forwards, found.drafting.rows) == ("qwen3-1.7b", 3, 4)
    assert found.drafting.survival == (0.76, 0.58, 0.46)
    assert (found.requests.num_clients, found.gaps) == (8, ())


def test_a_mean_of_tokens_is_one_rate_at_all_positions(tmp_path: Path) -> None:
    found = row(tmp_path, "EAGLE-3,Llama-3.1-8B,EAGLE-3,5,3.1,,bf16,H100,1,TP1,SGLang 0.5.9,1,76,256,300,,")
    assert found.drafting is not None
    assert 1 + sum(found.drafting.survival) == pytest.approx(3.1)
    assert found.drafting.survival[1] == pytest.approx(found.drafting.survival[0] ** 2)


@pytest.mark.parametrize(
    ("stated", "layout", "gaps"),
    [
        ("8,TP8", None, ()),
        ("8,TP8+EP", DeviceLayout(tp=8, ep=8), ()),
        ("8,DP8+EP8", DeviceLayout(dp=8, ep=8), ()),
        ("8,balanced recipe (DP attention likely)", DeviceLayout(dp=8), ("layout",)),
    ],
)
def test_the_layout_of_a_mixture(tmp_path: Path, stated: str, layout: DeviceLayout | None, gaps: tuple[str]) -> None:
    found = row(tmp_path, f"MTP,DeepSeek-R1,MTP,1,1.8,,fp8,H200,{stated},SGLang 0.5.9,64,1024,1024,50,,")
    assert found.drafting is not None
    assert found.drafting.draft is not None
    for spec in (found.target.spec, found.drafting.draft.spec):
        assert isinstance(spec, SparseSpec)
        assert spec.layout == layout
    assert (found.degree, found.gaps) == (8, gaps)


def test_acceptance_that_a_row_leaves_open_is_that_of_its_text(tmp_path: Path) -> None:
    """Of the kind's other drafters on the data set's class; it widens the interval as much as they differ."""
    found = {}
    for dataset in ("HumanEval", "ShareGPT", "CNN/DailyMail"):
        path = tmp_path / "speeds.csv"
        row = f"EAGLE-3,Llama-3.1-70B,EAGLE-3,3,bf16,H100,8,TP8,vLLM 0.15.1,1,76,256,100,{dataset}"
        path.write_text(f"cls,target,head,K,quant,gpu,gpus,par,engine,conc,isl,osl,tok_s_user,dataset\n{row}\n")
        ((_, measured),) = read_speed_rows(path, engine=None)
        assert isinstance(measured, MeasuredRow)
        assert measured.drafting is not None
        usual = usual_rates("eagle3", dataset, 3)
        assert measured.drafting.survival == pytest.approx(unconditional_rates(usual.rates))
        assert measured.gaps == ("acceptance",)
        (compared,) = compare_speeds(path).rows
        (figure,) = compared.figures
        found[dataset] = figure.predicted
        assert figure.high / figure.predicted > 1 + 1.645 * usual.spread
    assert found["ShareGPT"] < found["CNN/DailyMail"] < found["HumanEval"]


def test_a_row_is_not_predicted_from_its_own_source(tmp_path: Path) -> None:
    path = tmp_path / "speeds.csv"
    row = "sgl-project/SpecForge issue 339,EAGLE-3,Qwen3-30B-A3B,EAGLE-3,3,bf16,H100,2,TP2,SGLang 0.5.9,1,100,512,160"
    path.write_text(
        f"source,cls,target,head,K,quant,gpu,gpus,par,engine,conc,isl,osl,tok_s_user,dataset\n{row},MT-Bench\n"
    )
    survival = []
    for leave_out in (LeaveOut.NONE, LeaveOut.SOURCE):
        ((_, found),) = read_speed_rows(path, engine=None, leave_out=leave_out)
        assert isinstance(found, MeasuredRow)
        assert found.drafting is not None
        survival.append(found.drafting.survival)
    # That head is among the worst of its kind.
    assert survival[0][0] < survival[1][0]


def test_the_comparison_of_drafts_says_the_same_of_a_head_and_a_text(tmp_path: Path) -> None:
    """Rooms agree: prompts of 8,192 tokens count in both, and so does the text."""
    path = tmp_path / "speeds.csv"
    head = "cls,target,head,K,quant,gpu,gpus,engine,conc,isl,osl,tok_s_user,dataset"
    rows = [f"EAGLE-3,qwen3-8b,EAGLE-3,{k},bf16,h100-sxm,1,vLLM 0.15,16,8192,128,1,CNN/DailyMail" for k in (2, 3, 4)]
    plain = "plain dense,qwen3-8b,,,bf16,h100-sxm,1,vLLM 0.15,16,8192,128,1,CNN/DailyMail"
    short = plain.replace("8192", "512")
    path.write_text("\n".join((head, plain, short, *rows)) + "\n")
    speeds = [row.figures[0].predicted for row in compare_speeds(path).rows]
    assert speeds[0] < 0.5 * speeds[1]
    deployment = Deployment(
        device="h100", num_devices=1, quant="bf16", engine="vllm@0.15", context=8192, output_tokens=128
    )
    compared = compare_kinds(
        "qwen3-8b", deployment=deployment, drafts=["eagle3"], clients=(16,), dataset="CNN/DailyMail", num_jobs=1
    )
    none, *_, eagle3 = (kind.points[0] for kind in compared.kinds)
    assert none.user_tokens_per_s == pytest.approx(speeds[0], rel=0.02)
    assert eagle3.user_tokens_per_s == pytest.approx(max(speeds[2:]), rel=0.08)


def test_a_tree_of_sglang_has_steps_and_rows(tmp_path: Path) -> None:
    found = row(tmp_path, "EAGLE-3,Qwen3-30B-A3B,EAGLE-3,6-4-12,2.4,,bf16,H100,2,TP,SGLang 0.5.9,1,100,512,171,,")
    assert found.drafting is not None
    assert (found.drafting.forwards, found.drafting.rows) == (6, 12)


def test_what_a_row_leaves_open_is_named(tmp_path: Path) -> None:
    found = row(tmp_path, "MTP,GLM-5.2,MTP,,,,,H200,8,TP8,SGLang nightly,1,,,330,,glm-5 for GLM-5.2")
    assert set(found.gaps) == {
        "target, for which glm-5 stands",
        "build of SGLang",
        "weight format",
        "prompt length",
        "output length",
        "number of draft tokens",
        "acceptance",
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("vLLM 0.15.1", "TGI 3"), "engine is 'TGI 3', which is not described"),
        (("vLLM 0.15.1", ""), "engine is missing"),
        (("H100", "MI325X"), "device is 'MI325X', which is not registered"),
        (("Qwen3-32B", "Nobody-9B"), "target is 'Nobody-9B', which is not known by name"),
        (("TP1", "DP8+EP8"), "its 8 ranks of attention in data parallel do not divide its devices, 1"),
        ((",8,76", ",,76"), "conc is missing"),
    ],
)
def test_a_row_that_lacks_what_decides_it_is_left_out(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    ((_, found),) = read_speed_rows(written(tmp_path, PLAIN.replace(*change)), engine=None)
    assert isinstance(found, UnpredictedError)
    assert says in str(found)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (DRAFTED.replace("[0.76", "[1.76"), "line 2: pos is .*; expected rates of 0 to 1"),
        (DRAFTED.replace("[0.76", "[x"), "line 2: pos is .*; expected a list of rates"),
        (DRAFTED.replace('2.8,"[0.76, 0.58, 0.46]"', "0.5,"), "line 2: acc is 0.5; expected at least 1 token"),
        (PLAIN.replace(",8,76", ",half,76"), "line 2: conc is 'half'; expected a number"),
    ],
)
def test_a_file_that_says_nonsense_is_refused_by_line_and_column(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        list(read_speed_rows(written(tmp_path, line), engine=None))


def test_a_date_without_a_release_is_a_release_and_still_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "dated.csv"
    line = PLAIN.replace("vLLM 0.15.1", "vLLM 2025-06")
    path.write_text(f"{HEAD},date\n{line},2025-06-20\n")
    ((_, found),) = read_speed_rows(path, engine=None)
    assert isinstance(found, MeasuredRow)
    assert (found.engine.release, found.gaps) == ((0, 9, 0), ("release of vLLM",))


@pytest.mark.parametrize(
    ("data_set", "clients", "count"),
    [("MT-Bench", 16, 80), ("MT-Bench, 20 questions", 64, 20), ("HumanEval", 4, 12), ("random", 16, 48)],
)
def test_a_run_has_the_prompts_of_its_data_set(data_set: str, clients: int, count: int) -> None:
    found = text_requests(data_set, clients=clients, prompt_tokens=100, output_tokens=200)
    assert (len(found.output_tokens), found.num_clients) == (count, clients)
    assert found.output_tokens.mean() == pytest.approx(200, rel=0.02)


def test_a_share_of_a_run_includes_its_last_answers(tmp_path: Path) -> None:
    """64 clients that send 20 prompts have 20 requests at once at most, and fewer at the end."""
    path = tmp_path / "run.csv"
    line = PLAIN.replace(",8,76,256,28,", ",64,76,256,20,")
    path.write_text(f'{HEAD},dataset,total_tok_s\n{line},"MT-Bench, 20 questions",1280\n{line},random,\n')
    ((_, run), (_, steady)) = read_speed_rows(path, engine=None)
    assert isinstance(run, MeasuredRow)
    assert isinstance(steady, MeasuredRow)
    constants = run.engine.constants()
    speeds = [user_speed(row, row.run(constants)[1]) for row in (run, steady)]
    assert speeds[0] < 0.4 * speeds[1]


def test_texts_differ_and_have_the_stated_tokens_per_round_together(tmp_path: Path) -> None:
    found = row(tmp_path, "EAGLE-3,Llama-3.1-8B,EAGLE-3,5,3.1,,bf16,H100,1,TP1,SGLang 0.5.9,1,76,256,300,,")
    assert found.drafting is not None
    serving, _ = found.run(found.engine.constants())
    tokens = found.drafting.chains(serving).tokens.reshape(32, -1)
    of_text = tokens.mean(axis=1)
    assert 1 / (1 / of_text).mean() == pytest.approx(3.1, rel=0.01)
    assert 0.15 < of_text.std() / of_text.mean() < 0.3


@pytest.fixture(scope="module")
def published() -> Comparison:
    """All published speeds."""
    return compare_speeds(DATA / "published_speeds_2026.csv", engine=engine_named("vllm@0.15"))


def test_gains_of_drafting_are_right_where_drafts_were_measured(published: Comparison) -> None:
    gains = [figure for row in published.rows for figure in row.figures if figure.name == "speedup"]
    assert len(gains) > 180
    assert median(abs(gain.error) for gain in gains) <= 0.06
    assert sum(gain.is_inside for gain in gains) >= 0.8 * len(gains)


def test_measured_losses_are_not_called_gains(published: Comparison) -> None:
    calls = published.summary()["calls"]["all"]
    losses, measured_gains = calls["losses"], calls["gains"]
    assert sum(losses.values()) >= 8
    assert losses["gains"] <= sum(losses.values()) / 3
    assert measured_gains["loses"] <= 0.03 * sum(measured_gains.values())
    assert losses["open"] + measured_gains["open"] <= 0.15 * (sum(losses.values()) + sum(measured_gains.values()))


def test_coverage_counts_every_row(published: Comparison) -> None:
    coverage = published.summary()["coverage"]
    assert coverage["all"]["rows"] == len(published.rows) == sum(of["rows"] for of in coverage.values()) / 2
    assert coverage["all"]["predicted"] == sum(bool(row.figures) for row in published.rows)


def test_rows_come_back_with_predictions_beside_what_was_measured(published: Comparison) -> None:
    content = published.content()
    assert set(content) == {"rows", "summary"}
    first = content["rows"][0]
    assert {"tok_s_user", "predicted_tok_s_user", "low_tok_s_user", "high_tok_s_user"} <= set(first)
    assert first["low_tok_s_user"] < first["predicted_tok_s_user"] < first["high_tok_s_user"]
    drafted = next(row for row in content["rows"] if row["cls"] == "draft chain")
    assert {"speedup", "predicted_speedup"} <= set(drafted)
    assert any(row.get("left_out") for row in content["rows"])
