"""Commands in the words of an engine's description, whichever it is."""

from dataclasses import replace

import pytest

from swiftspec import engines
from swiftspec.artifacts.distributions import Distribution, Process
from swiftspec.artifacts.plan import Plan
from swiftspec.engines import ENGINES, Engine, engine_named
from swiftspec.engines.llamacpp import LLAMACPP
from swiftspec.engines.swiftspec import SWIFTSPEC
from swiftspec.engines.vllm import VLLM
from swiftspec.engines.words import LengthRange, Method
from swiftspec.export import export_plan
from swiftspec.export.command import ServerSettings, server_command
from swiftspec.models.device_layout import DeviceLayout
from swiftspec.planner.deployment import Deployment
from swiftspec.planner.for_device import plan_for
from swiftspec.planner.load import Load
from swiftspec.planner.search.options import SearchOptions
from swiftspec.policies import Policy
from swiftspec.policies.chains.serial import SerialChain
from swiftspec.policies.effects import Role
from swiftspec.policies.lookup.prompt_lookup import PromptLookup
from swiftspec.policies.lookup.suffix_decoding import SuffixDecoding
from swiftspec.workload import Arrivals, Lengths, make_workload
from tests.export.plans import CHAIN, TRACE, candidate, drafted, falling, plan

COPY = "copy"
FOUR_CLIENTS = make_workload(
    Arrivals(process=Process.CLOSED, num_clients=4),
    num_requests=12,
    prompt_tokens=Lengths(distribution=Distribution.FIXED, tokens=256),
    output_tokens=Lengths(distribution=Distribution.FIXED, tokens=64),
)


def planned(engine: str) -> Plan:
    return plan_for(
        Deployment(device="h100", num_devices=1, engine=engine, context=256, output_tokens=64),
        target="llama-3.1-8b",
        draft="llama-3.2-1b",
        options=SearchOptions(load=Load(workload=FOUR_CLIENTS), num_jobs=1),
        progress=lambda *_: None,
    ).plan


def test_a_copy_of_an_engines_description_plans_and_exports_as_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = replace(VLLM, name=COPY, full_name="Copy", fitted_as=VLLM.name)
    monkeypatch.setattr(engines, "ENGINES", {**ENGINES, COPY: copy})
    own, copied = planned("vllm@0.15"), planned("copy@0.15")
    assert copied.under_load is not None
    assert copied.under_load.engine.startswith("Copy 0.15 with steps of at most 8192 tokens")
    same = copied.model_dump_json(exclude={"origin", "profile"}).replace("Copy", "vLLM").replace(COPY, "vllm")
    assert own.model_dump_json(exclude={"origin", "profile"}) == same
    assert copied.engine == COPY
    first = export_plan(own, VLLM, policy="serial_chain")
    second = export_plan(copied, engine_named(COPY), policy="serial_chain")
    assert first.command == second.command
    assert second.full_name == "Copy"


def test_llama_cpp_drafts_with_a_model_of_its_own_file() -> None:
    exported = export_plan(CHAIN, LLAMACPP, lengths=falling, max_running=8)
    assert exported.command.split(" \\\n    ") == [
        "llama-server",
        "--model meta-llama/Meta-Llama-3-70B",
        "--split-mode row",
        "--tensor-split 1,1,1,1,1,1,1,1",
        "--parallel 8",
        "--spec-type draft-simple",
        "--spec-draft-model meta-llama/Llama-3.2-1B",
        "--spec-draft-n-max 4",
        "--spec-draft-p-min 0",
    ]
    assert any("convert_hf_to_gguf.py" in remark for remark in exported.remarks)
    assert exported.not_expressed == ("Draft tokens by batch size: llama.cpp always drafts as many.",)


def test_llama_cpp_divides_a_model_by_any_number_of_devices() -> None:
    exported = export_plan(plan(candidate("serial_chain", target=5)), LLAMACPP)
    assert not exported.is_other_plan
    assert "--tensor-split 1,1,1,1,1" in exported.command


def test_what_an_engine_does_not_do_is_said_in_a_sentence() -> None:
    with pytest.raises(ValueError, match=r"^synthetic is true; llama\.cpp imitates no acceptance$"):
        export_plan(CHAIN, LLAMACPP, imitated=TRACE)
    with pytest.raises(ValueError, match=r"with a parallel draft model .* which llama\.cpp does not have"):
        export_plan(drafted("pard:llama-3.2-1b", candidate("parallel_chain")), LLAMACPP)
    with pytest.raises(ValueError, match=r"^engine is swiftspec, which runs a plan as it is: swiftspec serve --plan"):
        export_plan(CHAIN, SWIFTSPEC)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=list(ENGINES))
def test_every_word_has_a_value_of_a_plan_to_fill_it(engine: Engine) -> None:
    """Of methods that no plan here uses, too: one that no plan has is an error of the description."""
    policies: dict[Method, Policy] = {
        Method.PROMPT_LOOKUP: PromptLookup(num_draft_tokens=3, longest_match=2),
        Method.SUFFIX: SuffixDecoding(verify_rows=4),
    }
    for method in engine.methods:
        assert engine.command is not None
        served = ServerSettings(
            target="me/target",
            draft="me/draft",
            method=method,
            policy=policies.get(method, SerialChain(num_draft_tokens=3)),
            layout=DeviceLayout(dp=2, ep=2),
            draft_degree=2,
            quantisation={Role.TARGET: "fp8", Role.DRAFT: "fp8"},
            schedule=(LengthRange(1, 4, 3), LengthRange(5, 8, 0)),
            max_running=8,
            rates=(0.8, 0.5, 0.3),
        )
        command = server_command(engine, served)
        assert command.configuration
        assert "None" not in command.arguments
        assert not any("Value." in word or "policy." in word for word in command.arguments)
