import json
from pathlib import Path
from typing import Any

import pytest

from swiftspec.models.draft_kinds import DraftFacts, draft_facts
from swiftspec.models.head_spec import BlockSpec
from swiftspec.models.heads import Drafter, drafter_of
from swiftspec.policies import DraftKind, make_policy
from swiftspec.policies.base import check_draft


def test_the_bundled_draft_is_serial() -> None:
    assert draft_facts("demo/draft") == DraftFacts(kind=DraftKind.SERIAL, mask_token=-1)


def test_a_draft_with_a_mask_token_is_parallel(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100, "pard_token": 99}))
    assert draft_facts(tmp_path) == DraftFacts(kind=DraftKind.PARALLEL, mask_token=99, drafter=Drafter.PARD)


@pytest.mark.parametrize("token", [100, -1, True, "a"])
def test_a_mask_token_outside_the_vocabulary_is_refused(tmp_path: Path, token: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 100, "pard_token": token}))
    with pytest.raises(ValueError, match=r"config.json: pard_token is .*; expected a token id below 100"):
        draft_facts(tmp_path)


def test_a_policy_refuses_a_draft_of_another_kind() -> None:
    check_draft(make_policy("swiftspec"), DraftKind.PARALLEL)
    with pytest.raises(ValueError, match="policy is swiftspec, which needs a serial or parallel draft"):
        check_draft(make_policy("swiftspec"), DraftKind.HEAD)


DFLASH: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "block_size": 8,
}
NESTED = {"mask_token_id": 9, "target_layer_ids": [1, 3]}


@pytest.mark.parametrize(
    ("values", "drafter"),
    [
        ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096}, None),
        ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 4096}, Drafter.EAGLE),
        ({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 64}, None),
        ({"architectures": ["EagleLlamaForCausalLM"]}, Drafter.EAGLE),
        ({"architectures": ["EAGLEModel"], "model_type": "eagle"}, Drafter.EAGLE),
        ({"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000}, Drafter.EAGLE3),
        ({"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}, Drafter.EAGLE3),
        ({"architectures": ["LlamaForCausalLM"], "eagle_config": {}}, Drafter.EAGLE3),
        ({"architectures": ["LlamaForCausalLMEagle3"], "parallel_drafting": True}, Drafter.P_EAGLE),
        ({"architectures": ["LlamaForCausalLMEagle3"], "ptd_token_id": 0}, Drafter.P_EAGLE),
        ({"architectures": ["PEagleDraftModel"]}, Drafter.P_EAGLE),
        ({"speculators_model_type": "peagle"}, Drafter.P_EAGLE),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {}}, Drafter.DFLASH),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"projector_type": "domino"}}, Drafter.DOMINO),
        ({"architectures": ["DominoDraftModel"], "dflash_config": {}}, Drafter.DOMINO),
        ({"architectures": ["DSparkDraftModel"], "dflash_config": {}}, Drafter.DSPARK),
        ({"model_type": "qwen3", "speculators_model_type": "dspark"}, Drafter.DSPARK),
        ({"architectures": ["Qwen3NextMTP"]}, Drafter.MTP),
        ({"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}, Drafter.MTP),
        ({"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 0}, None),
        ({"architectures": ["LlamaForCausalLM"], "pard_token": 7}, Drafter.PARD),
        ({"architectures": ["LlamaForCausalLM"], "parallel_drafting": False}, None),
    ],
    ids=str,
)
def test_a_drafter_is_known_by_its_content(tmp_path: Path, values: dict[str, Any], drafter: Drafter | None) -> None:
    assert drafter_of(tmp_path / "eagle3-mtp-dflash", values) is drafter


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"architectures": ["MedusaModel"]}, "architectures is 'MedusaModel'"),
        ({"medusa_num_heads": 5, "base_model_name_or_path": "vicuna"}, "medusa_num_heads is 5"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator"}, "MLPSpeculator"),
        ({"speculators_model_type": "lookahead"}, "speculators_model_type is 'lookahead'"),
        ({"architectures": ["GlideDraftModel"]}, "architectures is 'GlideDraftModel'"),
        ({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000}, "draft_vocab_size is 32000"),
    ],
    ids=str,
)
def test_an_unknown_drafter_is_no_plain_model(tmp_path: Path, values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as raised:
        drafter_of(tmp_path, values)
    assert str(raised.value).startswith(f"{tmp_path}: config.json ")
    assert "expected a plain model, or one of the kinds eagle, eagle3, mtp" in str(raised.value)


def block(directory: Path, **changes: Any) -> BlockSpec:
    (directory / "config.json").write_text(json.dumps(DFLASH | changes))
    return BlockSpec.from_directory(directory, runs=False)


def test_a_block_has_the_size_of_its_config(tmp_path: Path) -> None:
    found = block(tmp_path, architectures=["DFlashDraftModel"], dflash_config=NESTED)
    assert (found.drafter, found.block_size, found.num_draft_tokens) == (Drafter.DFLASH, 8, 7)
    assert (found.feature_layers, found.mask_token, found.markov_rank, found.gru_size) == ((2, 4), 9, 0, 0)


def test_dspark_answers_at_every_place_of_a_block_and_domino_corrects_by_a_recurrence(tmp_path: Path) -> None:
    spark = block(tmp_path, architectures=["DSparkDraftModel"], dflash_config={**NESTED, "markov_rank": 64})
    assert (spark.drafter, spark.num_draft_tokens, spark.markov_rank) == (Drafter.DSPARK, 8, 64)
    nested = {**NESTED, "emb_dim": 32, "gru_hidden_dim": 128}
    domino = block(tmp_path, architectures=["DominoDraftModel"], dflash_config=nested)
    assert (domino.drafter, domino.num_draft_tokens) == (Drafter.DOMINO, 7)
    assert (domino.markov_rank, domino.gru_size) == (32, 128)


def test_a_drafter_of_speculators_has_its_layers_within(tmp_path: Path) -> None:
    layers = {key: value for key, value in DFLASH.items() if key != "block_size"}
    outer = {"mask_token_id": 9, "aux_hidden_state_layer_ids": [1, 3], "block_size": 4, "draft_vocab_size": 100}
    config = {"speculators_model_type": "dflash", "transformer_layer_config": layers, **outer}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = BlockSpec.from_directory(tmp_path, runs=False)
    assert (found.layers.num_layers, found.draft_vocab_size, found.num_draft_tokens) == (3, 100, 3)
    with pytest.raises(ValueError, match="expected \\['DFlashDraftModel'\\] with a dflash_config"):
        BlockSpec.from_directory(tmp_path)
