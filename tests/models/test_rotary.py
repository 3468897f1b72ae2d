"""Scaling of rotary embeddings as a config.json states it, and the context that a plan takes from it."""

from typing import Any

import pytest

from swiftspec.models.rotary import RopeScaling
from swiftspec.models.sparse_config import spec_from_config
from swiftspec.models.spec import ModelSpec

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 40960,
    "rope_theta": 1e6,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "beta_fast": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def planned(**changes: Any) -> ModelSpec:
    return spec_from_config(QWEN3 | changes, source="here")


def test_without_a_scaling_the_stated_context_is_planned() -> None:
    spec = planned()
    assert (spec.rope_theta, spec.rope_scaling, spec.max_position) == (1e6, None, 40960)


@pytest.mark.parametrize(
    ("scaling", "kind", "longest"),
    [
        (YARN, "yarn", 131072),
        ({"type": "yarn", "factor": 2.0}, "yarn", 81920),
        ({"type": "linear", "factor": 2.0}, "linear", 81920),
        ({"rope_type": "dynamic", "factor": 1.5}, "dynamic", 61440),
        (LLAMA3, "llama3", 40960),
        ({"type": "su", "short_factor": [1.0, 1.1], "long_factor": [1.0, 4.0]}, "longrope", 40960),
    ],
    ids=lambda value: str(value)[:40],
)
def test_the_context_is_that_of_the_scaling(scaling: dict[str, Any], kind: str, longest: int) -> None:
    for changes in ({"rope_scaling": scaling}, {"rope_parameters": scaling | {"rope_theta": 1e6}}):
        spec = planned(**changes)
        assert spec.rope_scaling is not None
        assert (spec.rope_scaling.kind, spec.max_position, spec.rope_theta) == (kind, longest, 1e6)


def test_every_number_of_a_scaling_is_kept() -> None:
    assert planned(rope_scaling=YARN).rope_scaling == RopeScaling(
        kind="yarn", factor=4.0, original_max_position=32768, others=(("beta_fast", (32.0,)),)
    )
    factors = {"type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [1.0, 4.0]}
    found = planned(rope_scaling=factors).rope_scaling
    assert found is not None
    assert found.others == (("short_factor", (1.0, 1.1)), ("long_factor", (1.0, 4.0)))


def test_gemma_states_the_stretched_context() -> None:
    gemma = QWEN3 | {"model_type": "gemma3_text", "sliding_window": 1024, "max_position_embeddings": 131072}
    by_layer = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}, "sliding_attention": {}}
    spec = spec_from_config(gemma | {"rope_parameters": by_layer}, source="here")
    assert spec.rope_scaling == RopeScaling(kind="linear", factor=8.0)
    assert (spec.rope_theta, spec.max_position) == (1e6, 131072)


@pytest.mark.parametrize(
    ("scaling", "sentence"),
    [
        ({"rope_type": "spiral"}, "rope_scaling.rope_type is 'spiral'; expected one of default, mrope, linear"),
        ({"rope_type": "yarn"}, "factor is None; expected a positive number"),
        ({"rope_type": ["yarn"], "factor": 2}, r"rope_scaling.rope_type is \['yarn'\]; expected one of"),
        ({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": -1}, "_embeddings is -1; expected"),
    ],
    ids=str,
)
def test_a_scaling_that_is_not_known_is_one_sentence(scaling: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"here: config.json .*{sentence}"):
        planned(rope_scaling=scaling)


@pytest.mark.parametrize(
    ("scaling", "sentence"),
    [
        ({"rope_type": "longrope"}, "rope_type is 'longrope'; expected default, linear, dynamic, yarn, llama3"),
        ({"rope_type": "proportional"}, "rope_type is 'proportional'; expected default, linear"),
        (YARN | {"truncate": False}, "truncate is False; expected true"),
    ],
    ids=str,
)
def test_a_scaling_that_the_engine_does_not_compute_is_refused(scaling: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"here: config.json rope_scaling.{sentence}"):
        ModelSpec.from_config(QWEN3 | {"rope_scaling": scaling}, source="here")


def test_the_original_context_is_the_models_if_it_is_not_stated() -> None:
    for kind, stated, original in (("yarn", {}, 40960), ("yarn", YARN, 32768), ("dynamic", YARN, 40960)):
        scaling = {**stated, "rope_type": kind, "factor": 2.0}
        found = ModelSpec.from_config(QWEN3 | {"rope_scaling": scaling}, source="here").rope_scaling
        assert found is not None
        assert found.original_max_position == original


LINEAR = {"type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("layout", "theta", "scaling"),
    [
        ({"rope_parameters": {"rope_type": "default"}}, 1e6, None),  # the base at the top, as in transformers 4
        ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, 1e6, None),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, None),
        ({"rope_scaling": LINEAR, "rope_parameters": {}}, 1e6, "linear"),
        ({"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 1e6, "linear"),
        ({"rope_scaling": {}, "rope_parameters": LINEAR | {"rope_theta": 5e5}}, 5e5, "linear"),
        ({"rope_scaling": LINEAR | {"rope_type": None}}, 1e6, "linear"),
        ({"rope_scaling": LLAMA3 | {"type": "linear"}}, 1e6, "llama3"),
    ],
    ids=str,
)
def test_fields_are_read_where_a_release_of_transformers_put_them(
    layout: dict[str, Any], theta: float, scaling: str | None
) -> None:
    # As `LlamaConfig.from_dict(..).rope_parameters` of transformers 5.23 has them, but for the nulls.
    spec = planned(**layout)
    assert (spec.rope_theta, spec.rope_scaling and spec.rope_scaling.kind) == (theta, scaling)


def test_the_original_context_of_longrope_stands_outside() -> None:
    # microsoft/Phi-3-mini-128k-instruct, config.json
    spec = planned(rope_scaling={"type": "su", "short_factor": [1.0]}, original_max_position_embeddings=4096)
    assert spec.rope_scaling is not None
    assert spec.rope_scaling.original_max_position == 4096


@pytest.mark.parametrize("place", [{}, {"rope_type": "default"}], ids=["transformers 4", "transformers 5"])
def test_the_engine_turns_whole_heads(place: dict[str, Any]) -> None:
    part = {"partial_rotary_factor": 0.5}
    values = QWEN3 | ({"rope_parameters": place | part} if place else part)
    with pytest.raises(ValueError, match=r"partial_rotary_factor is 0\.5; expected 1"):
        ModelSpec.from_config(values, source="here")
