"""Tenants of a real engine and of a real server: each has its own output, whatever runs beside it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

import swiftspec
from swiftspec.artifacts.plan import Plan
from tests.cli.samples import plan as sample_plan
from tests.cli.tokenizer_files import write_printable_tokenizer
from tests.engine.conftest import two_cores
from tests.engine.fine_tunes import fine_tune, merge, write_adapter
from tests.engine.pairs import references, write_pair
from tests.server.running import running

pytestmark = two_cores

PROMPTS = ["def add(a, b):\n", "x = [", "import os"]
NUM_TOKENS = 24


@dataclass(frozen=True)
class Zoo:
    """Plans of a target and of models that say what its tenants do, and the tenants' directories."""

    plan: Plan
    own: dict[str, Plan]
    tenants: dict[str, Path]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    folder = tmp_path_factory.mktemp("zoo")
    target, draft = write_pair(folder, architecture="llama")
    for directory in (target, draft):
        write_printable_tokenizer(directory)
    tuned = fine_tune(target, folder / "tuned", layers=[1], seed=5)
    adapter = write_adapter(target, folder / "adapter")
    merged = merge(target, adapter, folder / "merged")

    def plan(model: Path) -> Plan:
        named, drafting = references((model, draft))
        return sample_plan(target=named, draft=drafting)

    return Zoo(plan(target), {"tuned": plan(tuned), "adapted": plan(merged)}, {"tuned": tuned, "adapted": adapter})


def text(engine: swiftspec.Engine, prompt: str, tenant: str | None) -> str:
    return "".join(
        chunk.text for chunk in engine.generate(prompt, max_new_tokens=NUM_TOKENS, ignore_eos=True, tenant=tenant)
    )


@pytest.fixture(scope="module")
def alone(zoo: Zoo) -> dict[str | None, list[str]]:
    """Texts of engines that have one model each."""
    found: dict[str | None, list[str]] = {}
    for tenant, plan in ((None, zoo.plan), *zoo.own.items()):
        with swiftspec.Engine(plan, policy="autoregressive") as engine:
            found[tenant] = [text(engine, prompt, None) for prompt in PROMPTS]
    assert len({tuple(texts) for texts in found.values()}) == 3
    return found


@pytest.mark.parametrize("policy", ["autoregressive", "serial_chain", "swiftspec"])
def test_tenants_of_one_engine_say_what_each_says_alone(
    policy: str, zoo: Zoo, alone: dict[str | None, list[str]]
) -> None:
    """All at once; where there is a draft, it drafts for all of them."""
    with swiftspec.Engine(zoo.plan, policy=policy, tenants=zoo.tenants) as engine:
        asked = [(prompt, tenant) for prompt in PROMPTS for tenant in alone]
        with ThreadPoolExecutor(len(asked)) as threads:
            together = list(threads.map(lambda each: text(engine, *each), asked))
        assert together == [alone[tenant][PROMPTS.index(prompt)] for prompt, tenant in asked]
        assert [tenant.name for tenant in engine.tenants] == ["", "tuned", "adapted"]
        assert engine.tenants[1].weight_bytes > 0
        scores = {tenant: [token.log_prob for token in engine.score(PROMPTS[0], tenant=tenant)][1:] for tenant in alone}
        assert len({tuple(each) for each in scores.values()}) == 3
        with pytest.raises(ValueError, match="tenant is 'other'; this engine has tuned, adapted"):
            engine.generate("x", tenant="other")


def test_a_server_has_its_tenants_as_models(zoo: Zoo, alone: dict[str | None, list[str]], tmp_path: Path) -> None:
    zoo.plan.save(tmp_path / "plan.json")
    named = [f"--tenant={name}={directory}" for name, directory in zoo.tenants.items()]
    with running(tmp_path / "plan.json", "--model-name", "base", *named, log=tmp_path / "log") as server:
        models = server.json("/v1/models")[1]["data"]
        assert [(model["id"], model["parent"]) for model in models] == [
            ("base", None),
            ("tuned", "base"),
            ("adapted", "base"),
        ]
        body = {"prompt": PROMPTS[0], "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        for tenant, texts in alone.items():
            said = server.json("/v1/completions", {**body, "model": tenant or "base"})[1]
            assert (said["model"], said["choices"][0]["text"]) == (tenant or "base", texts[0])
        status, said = server.json("/v1/completions", {**body, "model": "other"})
        assert status == 404
        assert said["error"]["message"] == "model is 'other'; this server has 'base', 'tuned', 'adapted'"
    assert "Tenant tuned: its own weights take" in (tmp_path / "log").read_text()


def test_a_directory_that_is_no_tenant_is_said_before_anything_starts(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no directory"):
        swiftspec.Engine(zoo.plan, tenants={"x": tmp_path / "none"})
    with pytest.raises(ValueError, match="its name is empty"):
        swiftspec.Engine(zoo.plan, tenants={"": zoo.tenants["tuned"]})
