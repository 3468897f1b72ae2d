import dataclasses

import pytest

from swiftspec.devices import DEVICES
from swiftspec.engines import ENGINES, engine_named
from swiftspec.engines.constants import fitted_sets
from swiftspec.engines.description import Engine, StepLimits
from swiftspec.engines.sglang import SGLANG
from swiftspec.engines.vllm import VLLM
from swiftspec.engines.words import Method

H100, A100 = DEVICES["h100-sxm"], DEVICES["a100-sxm"]
FIELDS = {field.name for field in dataclasses.fields(StepLimits)}
SWITCHES = {"prefix_cache", "no_prefix_cache", "runs_step_by_step"}


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_says_where_its_facts_are_from(name: str) -> None:
    engine = ENGINES[name]
    assert engine.source
    assert set(engine.words.values()) <= FIELDS | SWITCHES
    assert all(part in FIELDS | {"step_s"} for part in ("step_tokens", "requests"))
    constants = engine.constants()
    assert min(dataclasses.astuple(dataclasses.replace(constants, sparse_layer_s=0.0))) >= 0


def test_vllm_has_its_own_limits_by_device() -> None:
    vllm = engine_named("vllm@0.15.1")
    assert (vllm.release, vllm.described()) == ((0, 15, 1), "vLLM 0.15.1")
    assert (vllm.limits(H100).step_tokens, vllm.limits(H100).requests) == (8192, 1024)
    assert (vllm.limits(A100).step_tokens, vllm.limits(A100).requests) == (2048, 256)


def test_a_release_decides_what_runs_beside_the_device() -> None:
    assert not engine_named("vllm@0.8.4").limits(H100).runs_ahead
    assert engine_named("vllm@0.15").limits(H100).runs_ahead
    assert not engine_named("llamacpp").limits(H100).runs_ahead


def test_a_release_decides_which_drafts_run_beside_the_device() -> None:
    def ahead(release: str) -> set[Method]:
        return {method for method in VLLM.methods if VLLM.at(release).drafts_ahead(method)}

    heads = {Method.EAGLE, Method.EAGLE3, Method.P_EAGLE, Method.MTP, Method.DSPARK}
    assert ahead("0.15.1") == heads
    assert ahead("0.26") == heads | {Method.MODEL, Method.PARD}
    assert set(VLLM.methods) - ahead("0.33") == {Method.PROMPT_LOOKUP, Method.SUFFIX, Method.DRAFT_SERVER}


@pytest.mark.parametrize(
    ("day", "release"),
    [("2025-03-20", (0, 8, 0)), ("2026-01", (0, 15, 0)), ("2026-01-19", (0, 13, 0)), ("2019-01", (0, 6, 0))],
)
def test_a_date_means_the_release_of_that_day(day: str, release: tuple[int, ...]) -> None:
    assert VLLM.as_of(day).release == release


@pytest.mark.parametrize("engine", [engine for engine in ENGINES.values() if engine.published])
def test_releases_are_in_the_order_of_their_days_and_end_with_the_described_one(engine: Engine) -> None:
    releases = [engine.at(release).release for release in engine.published]
    assert releases == sorted(releases)
    assert list(engine.published.values()) == sorted(engine.published.values())
    assert releases[-1] == engine.release


def test_sglangs_first_speculative_worker_formed_rounds_late() -> None:
    before, now = SGLANG.at("0.5.6"), SGLANG
    assert before.late_by(Method.EAGLE3, before.limits(H100)) == SGLANG.late_round_s > 0
    assert now.late_by(Method.EAGLE3, now.limits(H100)) == 0
    assert before.late_by(None, before.limits(H100)) == 0
    step_by_step = now.limits(H100, {"disable_overlap_schedule": "true"})
    assert now.late_by(Method.EAGLE3, step_by_step) == SGLANG.late_round_s


def test_settings_have_the_engines_own_words() -> None:
    vllm = engine_named("vLLM")
    limits = vllm.limits(H100, {"max_num_batched_tokens": "2048", "max_num_seqs": "128", "block_size": "32"})
    assert (limits.step_tokens, limits.requests, limits.prefix_block) == (2048, 128, 32)
    assert vllm.limits(H100, {"max_num_batched_tokens": "64"}).requests == 64
    assert vllm.limits(H100, {"enable_prefix_caching": "false"}).prefix_block == 0
    assert vllm.limits(H100, {"no_enable_prefix_caching": "true"}).prefix_block == 0
    assert not vllm.limits(H100, {"no_async_scheduling": "true"}).runs_ahead
    assert engine_named("sglang").limits(H100, {"chunked_prefill_size": "4096"}).step_tokens == 4096


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vlm", "engine is 'vlm'; did you mean vllm"),
        ("tgi", "engine is 'tgi'"),
        ("vllm@", "names no release; expected one such as vllm@0.15"),
        ("vllm@newest", "engine vllm@newest names no release"),
    ],
)
def test_an_engine_that_is_not_described_is_refused_in_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        engine_named(text)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_tokens": "5"}, "set max_tokens is no limit of vLLM that is known here; expected one of max_num_batched"),
        ({"max_num_seqs": "many"}, "set max_num_seqs is 'many'; expected a whole number, true or false"),
        (
            {"max_num_seqs": "128", "max_num_batched_tokens": "64"},
            "set max_num_seqs is 128; vLLM refuses more than a step's tokens, 64",
        ),
        ({"max_num_seqs": "0"}, "set max_num_seqs is 0; expected at least 1"),
        ({"max_num_batched_tokens": "-4"}, "set max_num_batched_tokens is -4; expected at least 1"),
    ],
)
def test_a_limit_that_it_does_not_have_is_refused_in_a_sentence(settings: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        engine_named("vllm").limits(H100, settings)


def test_constants_say_what_they_were_fitted_on_and_leave_models_out() -> None:
    every = fitted_sets()["vllm"][0]
    without = fitted_sets("model:gpt-oss-120b")["vllm"][0]
    assert "gpt-oss-120b" in every.fitted_on
    assert "gpt-oss-120b" not in without.fitted_on
    assert every.constants != without.constants
    assert fitted_sets("model:nobody-measured-this")["vllm"][0] == every


def test_a_release_before_all_sets_has_the_oldest() -> None:
    sets = fitted_sets()["sglang"]
    assert engine_named("sglang@0.4").constants() == sets[0].constants
    assert engine_named("sglang@0.5.12").constants() == sets[-1].constants
