"""Plans as command lines of other engines, against the options that the check `export` recorded of their parsers."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from swiftspec.acceptance.importing import chain_rates
from swiftspec.artifacts.plan import Candidate
from swiftspec.cli.app import main
from swiftspec.engines import Engine
from swiftspec.engines.llamacpp import LLAMACPP
from swiftspec.engines.sglang import SGLANG
from swiftspec.engines.trtllm import TRTLLM
from swiftspec.engines.vllm import VLLM
from swiftspec.engines.words import LengthRange
from swiftspec.export import Export, export_plan, length_ranges
from swiftspec.files.document import ModelRef
from tests.cli import samples
from tests.export.plans import ASYNC, CHAIN, DRAFTED, TRACE, candidate, drafted, falling, lengths, plan

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("options.json").read_text(encoding="utf-8"))
PLANS = {
    "llama-3.2-1b": ("swiftspec", "eagle2_tree", "serial_chain", "prompt_lookup", "autoregressive"),
    "eagle3": ("head_chain", "head_tree"),
    "mtp": ("head_chain",),
    "pard:llama-3.2-1b": ("parallel_chain",),
    "p-eagle": ("parallel_chain",),
    "dflash": ("parallel_chain",),
    "dspark": ("parallel_chain",),
    "qwen2-0.5b": ("suffix_decoding",),
}
NOT_SGLANGS = ("pard:llama-3.2-1b", "p-eagle", "qwen2-0.5b")


@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=lambda engine: engine.name)
@pytest.mark.parametrize(("draft", "policies"), PLANS.items())
@pytest.mark.parametrize("synthetic", [False, True])
def test_every_option_is_one_of_the_engines_parser(
    engine: Engine, draft: str, policies: Sequence[str], synthetic: bool
) -> None:
    candidates = [candidate(name, target=5, draft=3) if name == "swiftspec" else candidate(name) for name in policies]
    made = drafted(draft, *candidates, quantisation={"target": "fp8", "draft": "bf16"})
    for policy in policies:
        if engine is SGLANG and draft in NOT_SGLANGS:
            continue
        imitated = TRACE if synthetic and policy in DRAFTED else None
        exported = export_plan(made, engine, policy=policy, lengths=falling, max_running=64, imitated=imitated)
        check_options(engine, exported)


def check_options(engine: Engine, exported: Export) -> None:
    options = RECORDED[engine.name]["options"]
    words = list(exported.arguments)
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        known = options[word]
        if known["type"] == "flag":
            assert words[at + 1 : at + 2] == [] or words[at + 1].startswith("--")
            continue
        if known["choices"] is not None:
            assert words[at + 1] in known["choices"]
        if known["type"] == "int":
            int(words[at + 1])
    assert RECORDED[engine.name]["version"] == exported.version
    if engine is VLLM:
        assert exported.configuration.keys() <= RECORDED["vllm"]["configuration"].keys()
        for field, choices in RECORDED["vllm"]["choices"].items():
            assert exported.configuration.get(field, choices[0]) in choices
    assert exported.environment.keys() <= set(RECORDED["sglang"]["environment"])


NAMES = {
    # draft: (policy, vLLM's method, SGLang's algorithm, TensorRT-LLM's type)
    "eagle3": ("head_chain", "eagle3", "EAGLE3", "Eagle3"),
    "mtp": ("head_chain", "mtp", "NEXTN", "MTP"),
    "pard:llama-3.2-1b": ("parallel_chain", "draft_model", None, "PARD"),
    "p-eagle": ("parallel_chain", "eagle3", None, None),
    "dflash": ("parallel_chain", "dflash", "DFLASH", "DFlash"),
    "dspark": ("parallel_chain", "dspark", "DSPARK", "DSpark"),
}


@pytest.mark.parametrize("draft", NAMES)
def test_every_kind_of_draft_has_the_name_that_each_engine_gives_it(draft: str) -> None:
    policy, *names = NAMES[draft]
    made = drafted(draft, candidate(policy), candidate("autoregressive"))
    fields = {"vllm": "method", "sglang": "--speculative-algorithm", "trtllm": "decoding_type"}
    for engine, name in zip((VLLM, SGLANG, TRTLLM), names, strict=True):
        if name is None:
            with pytest.raises(ValueError, match=f"{engine.full_name} .* does not have; expected a plan with another"):
                export_plan(made, engine)
        else:
            assert export_plan(made, engine).configuration[fields[engine.name]] == name
    assert export_plan(made, VLLM).configuration.get("parallel_drafting", False) is (
        draft in ("pard:llama-3.2-1b", "p-eagle")
    )


def test_a_checkpoint_that_the_plan_does_not_name_is_asked_for_and_can_be_given() -> None:
    made = drafted("eagle3", candidate("head_chain"))
    exported = export_plan(made, VLLM)
    assert exported.configuration["model"] == "EAGLE3-CHECKPOINT"
    assert "--draft puts one in place of EAGLE3-CHECKPOINT" in exported.remarks[0]
    given = export_plan(made, VLLM, draft="me/head")
    assert given.configuration["model"] == "me/head"
    assert not any("names no checkpoint" in remark for remark in given.remarks)
    assert (
        export_plan(drafted("pard:llama-3.2-1b", candidate("parallel_chain")), VLLM).configuration["model"]
        == "amd/PARD-Llama-3.2-1B"
    )
    assert "model" not in export_plan(drafted("mtp", candidate("head_chain")), VLLM).configuration


def test_a_tree_of_a_head_is_sglangs_and_elsewhere_the_plans_chain() -> None:
    made = drafted("eagle3", candidate("head_tree"), candidate("head_chain"))
    config = export_plan(made, SGLANG).configuration
    found = [config[f"--speculative-{name}"] for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert found == ["4", "4", "12"]
    for engine in (VLLM, TRTLLM):
        other = export_plan(made, engine)
        assert other.candidate.startswith("head_chain 8")
        assert any("tree of 12 rows (head_tree)" in sentence for sentence in other.not_expressed)
    with pytest.raises(ValueError, match="has no head_chain in its place"):
        export_plan(drafted("eagle3", candidate("head_tree")), VLLM)


def test_an_asynchronous_parallel_draft_becomes_the_plans_chain() -> None:
    made = drafted("pard:llama-3.2-1b", candidate("swiftspec_parallel", target=6, draft=2), candidate("parallel_chain"))
    exported = export_plan(made, VLLM)
    assert exported.candidate == "parallel_chain 8 (num_draft_tokens=7)"
    assert any("devices of its own (6+2)" in sentence for sentence in exported.not_expressed)


def test_a_parallel_draft_that_writes_one_token_after_the_other_is_a_draft_model() -> None:
    made = drafted("pard:llama-3.2-1b", candidate("serial_chain"), candidate("parallel_chain"))
    for engine, name in ((VLLM, "draft_model"), (SGLANG, "STANDALONE"), (TRTLLM, "Draft_Target")):
        config = export_plan(made, engine).configuration
        assert name in config.values()
        assert "parallel_drafting" not in config
        assert "amd/PARD-Llama-3.2-1B" in config.values()
    other = export_plan(made, SGLANG, policy="parallel_chain")
    assert other.candidate.startswith("serial_chain")
    assert any("Drafts by a parallel draft model (PARD)" in sentence for sentence in other.not_expressed)


def test_suffix_decoding_is_vllms() -> None:
    made = plan(candidate("suffix_decoding"), candidate("autoregressive"))
    config = export_plan(made, VLLM).configuration
    assert (config["method"], config["num_speculative_tokens"]) == ("suffix", 8)
    assert config["suffix_decoding_max_spec_factor"] == 2.0
    with pytest.raises(ValueError, match="SGLang does not have, and the plan has no prompt_lookup"):
        export_plan(made, SGLANG)
    with_lookup = plan(candidate("suffix_decoding"), candidate("prompt_lookup"))
    assert export_plan(with_lookup, SGLANG).candidate.startswith("prompt_lookup")
    wide = candidate("suffix_decoding").model_copy(update={"shape": {"verify_rows": 9, "branches": 3}})
    other = export_plan(plan(wide), VLLM)
    assert other.tokens_per_s is None
    assert any("3 continuations" in sentence for sentence in other.not_expressed)


def test_sglang_has_a_schedule_for_heads_only() -> None:
    made = drafted("eagle3", candidate("head_chain"))
    exported = export_plan(made, SGLANG, lengths=falling, max_running=64)
    assert exported.schedule == (LengthRange(1, 7, 4), LengthRange(8, 31, 2), LengthRange(32, 64, 0))
    ladder = json.loads(exported.files["adaptive.json"])
    assert {size: entry["candidate_steps"] for size, entry in ladder.items()} == {"1": [4], "8": [2], "32": [0]}
    assert "--speculative-adaptive-config adaptive.json" in exported.command
    block = export_plan(drafted("dflash", candidate("parallel_chain")), SGLANG, lengths=falling, max_running=64)
    assert block.schedule == ()
    assert any("any other draft always" in sentence for sentence in block.not_expressed)


def test_vllm_counts_drafted_tokens_and_sglang_verified_rows() -> None:
    config = export_plan(CHAIN, VLLM).configuration
    assert (config["num_speculative_tokens"], config["draft_tensor_parallel_size"]) == (4, 8)
    assert (config["method"], config["model"]) == ("draft_model", "meta-llama/Llama-3.2-1B")
    config = export_plan(CHAIN, SGLANG).configuration
    assert (config["--speculative-num-steps"], config["--speculative-num-draft-tokens"]) == ("4", "5")
    assert export_plan(CHAIN, TRTLLM).configuration["max_draft_len"] == 4


def test_a_tree_of_eagle_2_is_only_sglangs() -> None:
    made = plan(candidate("eagle2_tree"), candidate("serial_chain"))
    config = export_plan(made, SGLANG).configuration
    found = [config[f"--speculative-{name}"] for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    assert found == ["4", "4", "12"]
    assert not export_plan(made, SGLANG).is_other_plan
    other = export_plan(made, VLLM)
    assert other.candidate == "serial_chain 8 (num_draft_tokens=4)"
    assert any("tree of 12 rows" in sentence for sentence in other.not_expressed)


def test_an_asynchronous_plan_becomes_the_plans_chain_with_its_own_speed() -> None:
    exported = export_plan(ASYNC, VLLM)
    assert exported.is_other_plan
    assert exported.planned.startswith("swiftspec 5+3")
    assert (exported.planned_tokens_per_s, exported.tokens_per_s) == (290.0, 190.0)
    text = " ".join(exported.not_expressed)
    for missing in ("devices of its own (5+3)", "while the target verifies", "divided into 3 parts", "tree of 8 rows"):
        assert missing in text
    assert export_plan(CHAIN, VLLM).not_expressed == ()


def test_a_window_without_a_chain_in_the_plan_is_a_chain_as_long_and_not_predicted() -> None:
    exported = export_plan(plan(candidate("pearl", target=7, draft=1), candidate("autoregressive")), SGLANG)
    assert exported.candidate == "serial_chain 8 (num_draft_tokens=3)"
    assert exported.tokens_per_s is None


def test_a_policy_without_a_substitute_is_an_error() -> None:
    made = plan(candidate("swiftspec", target=5, draft=3), candidate("autoregressive"))
    with pytest.raises(ValueError, match=r"policy is 'swiftspec', which vLLM does not have.*serial_chain"):
        export_plan(made, VLLM)


def test_heads_decide_how_many_devices_divide_a_model() -> None:
    exported = export_plan(plan(candidate("serial_chain", target=5)), VLLM)  # 64 heads
    assert exported.arguments[4] == "4"
    assert exported.tokens_per_s is None
    assert "4 devices instead of 5" in exported.basis
    small = {"draft": ModelRef(model="qwen2-0.5b", dtype="bf16"), "target": ModelRef(model="qwen2-72b", dtype="bf16")}
    made = plan(candidate("serial_chain"), **small)  # a draft of 14 heads
    assert export_plan(made, VLLM).configuration["draft_tensor_parallel_size"] == 1
    assert export_plan(made, SGLANG).arguments[6] == "2"


def test_slower_than_plain_decoding_is_said() -> None:
    slow = candidate("serial_chain").model_dump()
    slow["prediction"]["metrics"]["figures"]["tokens_per_s"] = 40.0
    made = plan(Candidate.model_validate(slow), candidate("autoregressive"))
    assert any("--policy autoregressive" in remark for remark in export_plan(made, VLLM).remarks)
    assert not any("--policy autoregressive" in remark for remark in export_plan(CHAIN, VLLM).remarks)


def test_ranges_cover_every_batch_size_once() -> None:
    assert length_ranges(lengths((1, 4), (2, 4), (4, 3), (8, 0), (64, 0)), 48) == ((1, 3, 4), (4, 7, 3), (8, 48, 0))
    assert length_ranges(lengths((2, 3)), 10) == ((1, 10, 3),)


def test_a_schedule_is_written_as_each_engine_reads_it() -> None:
    engines = (VLLM, SGLANG, TRTLLM)
    found = {engine.name: export_plan(CHAIN, engine, lengths=falling, max_running=64) for engine in engines}
    assert found["vllm"].schedule == (LengthRange(1, 7, 4), LengthRange(8, 31, 2), LengthRange(32, 64, 0))
    ranges = found["vllm"].configuration["num_speculative_tokens_per_batch_size"]
    assert ranges == [[1, 7, 4], [8, 31, 2], [32, 64, 0]]
    assert found["trtllm"].configuration["draft_len_schedule"] == {7: 4, 31: 2}  # above, nothing is drafted
    assert "    7: 4\n    31: 2\n" in found["trtllm"].files["trtllm.yaml"]
    assert found["sglang"].schedule == ()
    assert any("EAGLE3 heads only" in sentence for sentence in found["sglang"].not_expressed)


def test_a_rising_schedule_is_not_tensorrt_llms() -> None:
    exported = export_plan(CHAIN, TRTLLM, lengths=lambda *_: lengths((1, 3), (2, 5), (4, 1)), max_running=8)
    assert exported.configuration["max_draft_len"] == 3
    assert max(exported.configuration["draft_len_schedule"].values()) == 3
    assert any("has to be the largest" in sentence for sentence in exported.not_expressed)


def test_rates_are_those_of_independent_positions() -> None:
    rates, _ = chain_rates(TRACE, 4)
    assert rates == pytest.approx([0.7, 0.49, 0.343, 0.2401], abs=0.03)
    assert list(rates) == sorted(rates, reverse=True)
    assert chain_rates(samples.trace(ranks=(0, 0, 1, 0)), 2) == ((1.0, 1.0), 1)  # the second round has no room
    with pytest.raises(ValueError, match="no output of so many tokens, at most 4"):
        chain_rates(samples.trace(), 5)


def test_acceptance_is_imitated_in_each_engines_unit() -> None:
    rates, _ = chain_rates(TRACE, 4)
    config = export_plan(CHAIN, VLLM, imitated=TRACE).configuration
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == pytest.approx(rates, abs=1e-4)
    with_bonus = export_plan(CHAIN, SGLANG, imitated=TRACE).environment["SGLANG_SIMULATE_ACC_LEN"]
    assert float(with_bonus) == pytest.approx(1 + sum(rates), abs=1e-4)
    (without,) = export_plan(CHAIN, TRTLLM, imitated=TRACE).environment.values()
    assert float(without) == pytest.approx(sum(rates), abs=1e-4)
    with pytest.raises(ValueError, match="policy is 'prompt_lookup'; only the acceptance of a chain can be imitated"):
        export_plan(CHAIN, VLLM, policy="prompt_lookup", imitated=TRACE)


def test_rates_are_as_many_as_the_longest_draft_of_a_schedule() -> None:
    longer = export_plan(CHAIN, VLLM, lengths=lambda *_: lengths((1, 6), (4, 1)), max_running=8, imitated=TRACE)
    assert longer.configuration["num_speculative_tokens"] == 6
    assert len(longer.configuration["synthetic_acceptance_rates"]) == 6


def test_verb_prints_the_command_and_writes_script_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, script, result = (tmp_path / name for name in ("plan.json", "serve.sh", "result.json"))
    ASYNC.save(path)
    arguments = ["export", "--plan", str(path), "--engine", "trtllm", "--out", str(script), "--json", str(result)]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.index("trtllm-serve") < printed.index("Not expressed")
    text = script.read_text()
    assert re.search(r"cat > trtllm.yaml <<'END_OF_FILE'\n(.*\n)+END_OF_FILE\n", text)
    assert json.loads(result.read_text())["tokens_per_s"] == 190.0


def test_verb_exports_to_the_engine_that_the_plan_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    plan(candidate("serial_chain"), engine="sglang").save(path)
    assert main(["export", "--plan", str(path)]) == 0
    assert "sglang.launch_server" in capsys.readouterr().out
    plan(candidate("serial_chain"), engine="swiftspec").save(path)
    assert main(["export", "--plan", str(path)]) == 2
    assert "--engine is swiftspec, which runs a plan as it is: swiftspec serve --plan FILE" in capsys.readouterr().err


def test_verb_says_in_a_sentence_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    plan(candidate("swiftspec", target=5, draft=3), candidate("autoregressive")).save(path)
    assert main(["export", "--plan", str(path), "--engine", "vllm"]) == 2
    assert capsys.readouterr().err.startswith("swiftspec: error: --policy is 'swiftspec', which vLLM does not have")


R1 = ModelRef(model="deepseek-r1", dtype="fp8")
SCHEDULE = "Draft tokens by batch size: ranks of attention in data parallel draft alike, so their number is fixed."


@pytest.mark.parametrize(
    ("engine", "layout", "words"),
    [
        (VLLM, "dp8ep8", ("--tensor-parallel-size 1", "--data-parallel-size 8", "--enable-expert-parallel")),
        (VLLM, "dp2tp4", ("--tensor-parallel-size 4", "--data-parallel-size 2", "--max-num-seqs 32")),
        (VLLM, "tp8ep8", ("--tensor-parallel-size 8", "--enable-expert-parallel", "--max-num-seqs 64")),
        (SGLANG, "dp8ep8", ("--tp-size 8", "--attn-dp-size 8", "--ep-size 8", "--max-running-requests 64")),
        (SGLANG, "dp2tp4", ("--tp-size 8", "--attn-dp-size 2")),
        (TRTLLM, "dp8ep8", ("--tp_size 8", "--max_batch_size 8")),
    ],
)
def test_a_layout_is_written_in_the_engines_words(engine: Engine, layout: str, words: Sequence[str]) -> None:
    made = drafted("mtp", candidate("head_chain"), target=R1, layout=layout)
    exported = export_plan(made, engine, lengths=falling, max_running=64)
    command = exported.command.split(" \\\n    ")
    assert set(words) <= set(command)
    assert "--data-parallel-size" not in exported.command or layout.startswith("dp")
    has_ranks = layout.startswith("dp")
    assert (SCHEDULE in exported.not_expressed) == has_ranks
    assert bool(exported.schedule) != has_ranks
    if engine is TRTLLM:
        assert "enable_attention_dp: true\nmoe_expert_parallel_size: 8\n" in exported.files["trtllm.yaml"]
    else:
        check_options(engine, exported)


def test_each_rank_divides_the_draft_as_it_does_the_target() -> None:
    made = drafted("mtp", candidate("head_chain"), target=R1, layout="dp2tp4")
    assert export_plan(made, VLLM).configuration["draft_tensor_parallel_size"] == 4


@pytest.mark.parametrize(
    ("engine", "layout", "says"),
    [
        (TRTLLM, "dp2tp4", "layout is dp2tp4; TensorRT-LLM has each rank of attention in data parallel on one device"),
        (LLAMACPP, "dp8", "layout is dp8; llama.cpp has no attention in data parallel"),
        (LLAMACPP, "tp8ep8", "layout is tp8ep8; llama.cpp divides every expert"),
    ],
)
def test_a_layout_that_an_engine_lacks_is_refused(engine: Engine, layout: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        export_plan(drafted("mtp", candidate("head_chain"), target=R1, layout=layout), engine)
