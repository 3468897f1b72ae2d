from pathlib import Path

import numpy as np
import pytest

from swiftspec.engines import engine_named
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.models.sparse_spec import SparseSpec
from swiftspec.validation.published.loads import read_load_rows
from swiftspec.validation.published.rows import MeasuredRow, UnpredictedError

CLOSED = "model,device,devices,engine,release,input_tokens,output_tokens,concurrency"
GPT = "openai/gpt-oss-120b,h100-sxm,2,vllm,0.13.0,1024,1024,16"
GPT_ON_8 = "openai/gpt-oss-120b,h100-sxm,8,trtllm,1.2,1024,1024,16"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "loads.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def only(path: Path, engine: str | None = None) -> MeasuredRow | UnpredictedError:
    ((_, row),) = read_load_rows(path, engine=engine_named(engine) if engine else None)
    return row


def known(path: Path, engine: str | None = None) -> MeasuredRow:
    row = only(path, engine)
    assert isinstance(row, MeasuredRow), row
    return row


def test_a_closed_loop(tmp_path: Path) -> None:
    row = known(written(tmp_path, CLOSED, GPT))
    assert (row.model, row.quant, row.degree, row.engine.release) == ("gpt-oss-120b", "mxfp4", 2, (0, 13, 0))
    assert row.is_closed
    assert row.requests.num_clients == 16
    assert set(row.requests.prompt_tokens.tolist()) == {1024}
    assert not row.gaps


def test_clients_of_a_closed_loop_do_not_stay_in_step(tmp_path: Path) -> None:
    stated = 1024
    lengths = known(written(tmp_path, CLOSED, GPT)).requests.output_tokens
    assert len(set(lengths.tolist())) > 50
    assert (0.9 * stated <= lengths.min(), lengths.max() <= 1.1 * stated) == (True, True)
    assert abs(lengths.mean() / stated - 1) < 0.02


def test_inferencex_draws_its_lengths(tmp_path: Path) -> None:
    row = known(written(tmp_path, CLOSED + ",source", GPT + ",InferenceMAX run 1"))
    lengths = row.requests.output_tokens
    assert (lengths.min() >= 819, lengths.max() <= 1024, len(lengths)) == (True, True, 160)
    assert len(set(lengths.tolist())) > 50
    assert row.source == "InferenceX"


def test_stages_share_their_prompts(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "experiment,model,device,devices,dtype,max_num_batched_tokens,max_num_seqs,stage,arrivals,rate_per_s,duration_s,"
        "system_prompt_tokens,question_tokens,output_tokens,distinct_prompts",
        "one,meta-llama/Llama-2-7b-hf,h100-sxm,1,fp16,2048,128,1,constant,5,100,100,466,247,100",
    )
    row = known(path, "vllm@0.15.1")
    assert row.settings == {"max_num_batched_tokens": "2048", "max_num_seqs": "128"}
    assert (row.quant, row.warm, row.source) == ("bf16", True, "inference-sim")
    assert row.requests.segments[3] == row.requests.segments[103] == [("system", 100), (3, 466)]
    arrivals = row.requests.arrival_s
    assert (len(arrivals), arrivals[-1]) == (500, pytest.approx(100.0))
    assert np.diff(arrivals).std() == pytest.approx(0.2, rel=0.2), "as inference-perf draws a constant load"


def test_the_columns_of_aiconfigurators_points(tmp_path: Path) -> None:
    head = "system,model,framework,version,batch,tp,attention_dp,moe_tp,moe_ep,concurrency,isl,osl,quant,gemm_quant,"
    head += "tpot_ms"
    dense = "h200_sxm,meta-llama/Llama-3.1-70B,vllm,,4,2,1,2,1,4,1024,1024,fp8,fp8,13.5"
    row = known(written(tmp_path, head, dense))
    assert (row.device.name, row.model, row.degree, row.quant) == ("h200-sxm", "llama-3.1-70b", 2, "fp8")
    assert row.gaps == ("release of vLLM",)
    parallel = "h200_sxm,deepseek-ai/DeepSeek-R1,trtllm,1.1,8,1,1,8,8,8,1024,1024,fp8,fp8,13.5"
    assert "data parallel" in str(only(written(tmp_path, head, parallel)))


@pytest.mark.parametrize(("ep", "ranks", "layout"), [(1, 1, None), (8, 1, "tp8ep8"), (1, 8, "dp8"), (8, 8, "dp8ep8")])
def test_the_layout_of_a_mixture(tmp_path: Path, ep: int, ranks: int, layout: str | None) -> None:
    row = known(written(tmp_path, CLOSED + ",ep,attention_dp,timeout_iters", f"{GPT_ON_8},{ep},{ranks},60"))
    assert isinstance(row.target.spec, SparseSpec)
    assert row.target.spec.layout == (None if layout is None else DeviceLayout.parse(layout))
    assert (row.degree, row.settings) == (8, {"timeout_iters": "60"})


@pytest.mark.parametrize(
    ("model", "ranks", "says"),
    [
        ("openai/gpt-oss-120b", 3, "its 3 ranks of attention in data parallel do not divide its devices, 8"),
        ("llama-3.1-8b", 8, "llama-3.1-8b has no experts, so that ranks of attention in data parallel are replicas"),
    ],
)
def test_a_layout_that_cannot_be_is_left_out(tmp_path: Path, model: str, ranks: int, says: str) -> None:
    line = f"{GPT_ON_8.replace('openai/gpt-oss-120b', model)},{ranks}"
    assert str(only(written(tmp_path, CLOSED + ",attention_dp", line))) == says


def test_a_row_that_drafts_is_drafted(tmp_path: Path) -> None:
    row = known(written(tmp_path, CLOSED + ",spec", GPT.replace("openai/gpt-oss-120b", "deepseek-r1") + ",mtp"))
    assert row.drafting is not None
    assert (row.drafting.forwards, row.drafting.rows) == (3, 4)
    assert set(row.gaps) == {"number of draft tokens", "acceptance"}
    assert known(written(tmp_path, CLOSED + ",spec", GPT + ",none")).drafting is None


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("engine", "", "engine is missing"),
        ("engine", "tgi", "engine is 'tgi'"),
        ("device", "h999", "device is 'h999', which is not registered"),
        ("device", "", "device is missing"),
        ("model", "someone/unknown-13b-of-theirs", "which is not known by name"),
        ("concurrency", "", "neither concurrency nor rate_per_s is stated"),
        ("input_tokens", "", "input_tokens is missing"),
    ],
)
def test_a_row_that_lacks_what_decides_it_is_left_out(tmp_path: Path, column: str, value: str, says: str) -> None:
    cells = GPT.split(",")
    cells[CLOSED.split(",").index(column)] = value
    assert says in str(only(written(tmp_path, CLOSED, ",".join(cells))))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["model,engine", "a,b"], "line 1: column device is missing; expected it or gpu, system"),
        ([CLOSED, GPT.replace(",16", ",many")], "line 2: concurrency is 'many'; expected a number"),
        ([CLOSED, GPT.replace(",16", ",2.5")], "line 2: concurrency is 2.5; expected a whole number"),
        ([CLOSED, GPT.replace(",16", ",inf")], "line 2: concurrency is inf; expected a finite number"),
        ([CLOSED + ",cached_share", GPT + ",1.5"], "line 2: cached_share is 1.5; expected 0 to 1"),
        ([CLOSED + ",length_share", GPT + ",0"], "line 2: length_share is 0; expected above 0, up to 1"),
        ([CLOSED + ",model", GPT + ",b"], "line 1: column model is there twice"),
        ([CLOSED, GPT + ",1,2"], "line 2: 10 cells; expected 8"),
    ],
)
def test_a_file_that_says_nonsense_is_refused_by_line_and_column(tmp_path: Path, lines: list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        list(read_load_rows(written(tmp_path, *lines), engine=None))
