"""Files that other programs write: only fields that are read matter, and those are refused by name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from swiftspec.files.safetensors import weight_files
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.head_spec import BlockSpec, HeadSpec
from swiftspec.models.sparse_config import read_spec
from swiftspec.models.spec import ModelSpec
from swiftspec.models.tenants import Adapter, tenant_spec
from swiftspec.server.chat_template import TemplateSource
from swiftspec.studies.latency_law.experts import expert_counts

pytestmark = pytest.mark.extra("serve")

NO_LIMIT = "1000000000000000019884624838656"  # int(1e30): what transformers writes for "no limit"

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "eos_token_id": 2,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MIXTRAL = LLAMA | EXPERTS | {"model_type": "mixtral", "sliding_window": None}
GPT_OSS = LLAMA | EXPERTS | {"model_type": "gpt_oss"}
HEAD = LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 100}
BLOCK = LLAMA | {
    "architectures": ["DFlashDraftModel"],
    "block_size": 8,
    "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 2]},
}
SPARK = LLAMA | {
    "speculators_model_type": "dspark",
    "transformer_layer_config": LLAMA,
    "aux_hidden_state_layer_ids": [0, 2],
    "mask_token_id": 5,
    "block_size": 8,
    "markov_rank": 16,
}
PARALLEL = LLAMA | {"pard_token": 7}
QUANTISED = LLAMA | {
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
        "ignore": ["lm_head"],
    }
}
ADAPTER = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_rslora": False, "bias": "none"}
INDEX = {"metadata": {"total_size": 1}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
TOKENIZER_CONFIG = {
    "tokenizer_class": "LlamaTokenizer",
    "bos_token": {"content": "<s>", "lstrip": False},
    "eos_token": "</s>",
    "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
}


class Reader(NamedTuple):
    """A reader of a model directory's file, and what that file usually holds."""

    file: str
    content: Mapping[str, Any]
    read: Callable[[Path], object]


READERS = {
    "the engine's model": Reader("config.json", LLAMA, ModelSpec.from_directory),
    "the engine's mixture": Reader("config.json", MIXTRAL, ModelSpec.from_directory),
    "a planned model": Reader("config.json", LLAMA, read_spec),
    "a planned mixture": Reader("config.json", GPT_OSS, read_spec),
    "a quantised model": Reader("config.json", QUANTISED, read_spec),
    "a planned head": Reader("config.json", HEAD, lambda path: HeadSpec.from_directory(path, runs=False)),
    "a planned block drafter": Reader("config.json", SPARK, lambda path: BlockSpec.from_directory(path, runs=False)),
    "a tenant": Reader("config.json", LLAMA, lambda path: tenant_spec(path, ModelSpec.from_directory(path))),
    "experts": Reader("config.json", MIXTRAL, expert_counts),
    "kind of a draft": Reader("config.json", LLAMA, draft_facts),
    "kind of a parallel draft": Reader("config.json", PARALLEL, draft_facts),
    "kind of a block drafter": Reader("config.json", BLOCK, draft_facts),
    "a head": Reader("config.json", HEAD, HeadSpec.from_directory),
    "a block drafter": Reader("config.json", BLOCK, BlockSpec.from_directory),
    "an adapter": Reader("adapter_config.json", ADAPTER, Adapter.read),
    "an index of weights": Reader("model.safetensors.index.json", INDEX, weight_files),
    "a chat template": Reader("tokenizer_config.json", TOKENIZER_CONFIG, TemplateSource.of),
}

# Values of a field that nobody reads, as JSON text.
UNREAD = {
    "transformers' no limit": NO_LIMIT,
    "no limit as a float": "1e+30",
    "thousands of digits": "-" + "9" * 5000,
    "an infinite float": "1e999",
    "NaN": "NaN",
    "Infinity": "Infinity",
    "minus Infinity": "-Infinity",
    "half a character": '"\\ud800"',
    "half a character in a key": '{"\\udc00": 1}',
    "22,422 fields": json.dumps({f"model.layers.{number}": {"bits": 4} for number in range(22_422)}),
    "itself twice": '1, "unread": 2',
    "nested objects": '{"a":' * 200 + "1" + "}" * 200,
}


@pytest.fixture(params=READERS, ids=str)
def reader(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


def read(directory: Path, reader: Reader, changes: Mapping[str, str] | None = None) -> object:
    """What is read of the usual file with some fields changed or added, each given as JSON text."""
    changes = changes or {}
    plain = json.dumps({key: value for key, value in reader.content.items() if key not in changes})
    more = "".join(f', "{field}": {text}' for field, text in changes.items())
    return read_bytes(directory, reader, f"{plain[:-1]}{more}}}".encode())


def read_bytes(directory: Path, reader: Reader, content: bytes) -> object:
    (directory / reader.file).write_bytes(content)
    return reader.read(directory)


@pytest.mark.parametrize("text", UNREAD.values(), ids=UNREAD)
def test_a_field_that_is_not_read_may_hold_anything(tmp_path: Path, reader: Reader, text: str) -> None:
    expected, changes = read(tmp_path, reader), {"unread": text, "model_max_length": text}
    if reader.content is ADAPTER:  # whose further fields change what it computes
        with pytest.raises(
            ValueError, match=r"adapter_config\.json: unread is .*; expected null, false or empty, as in plain LoRA$"
        ):
            read(tmp_path, reader, changes)
    else:
        assert read(tmp_path, reader, changes) == expected


def test_of_equal_fields_the_last_one_counts(tmp_path: Path) -> None:
    reader = READERS["the engine's model"]
    text = json.dumps(LLAMA)
    content = text.replace('"vocab_size": 320', '"vocab_size": "many", "vocab_size": 640').encode()
    spec = read_bytes(tmp_path, reader, content)
    assert isinstance(spec, ModelSpec)
    assert spec.vocab_size == 640


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_any_encoding_of_json_is_read(tmp_path: Path, reader: Reader, encoding: str) -> None:
    expected = read(tmp_path, reader)
    assert read_bytes(tmp_path, reader, json.dumps(reader.content).encode(encoding)) == expected


@pytest.mark.parametrize("comment", ["// text\n", "/* text */", "# text\n"])
def test_comments_are_refused(tmp_path: Path, reader: Reader, comment: str) -> None:
    with pytest.raises(ValueError, match=reader.file):
        read_bytes(tmp_path, reader, (comment + json.dumps(reader.content)).encode())


def test_what_is_nested_too_deeply_is_refused(tmp_path: Path, reader: Reader) -> None:
    with pytest.raises(ValueError, match=f"{reader.file}.*nested too deeply"):
        read(tmp_path, reader, {"unread": "[" * 100_000 + "]" * 100_000})


NOT_INTEGERS = ("NaN", "Infinity", "1e30", NO_LIMIT, "9" * 5000, "true", '"64"', "64.0", "[64]", '"\\ud800"', "-1")
NOT_NUMBERS = ("NaN", "Infinity", "-Infinity", "9" * 5000, "true", '"1"', "[1]", "0", "-1")
NOT_FLAGS = ("NaN", "1", NO_LIMIT, '"yes"', "[]")
NOT_TOKENS = ("NaN", "1e30", NO_LIMIT, "9" * 5000, "true", '"</s>"', f"[2, {NO_LIMIT}]", "[NaN]", "-1")
SHAPE = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings", "head_dim", "num_nextn_predict_layers"),
)
READ: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "the engine's model": {
        **dict.fromkeys(SHAPE, NOT_INTEGERS),
        **dict.fromkeys(("rope_theta", "rms_norm_eps"), NOT_NUMBERS),
        **dict.fromkeys(("tie_word_embeddings", "attention_bias", "mlp_bias"), NOT_FLAGS),
        "eos_token_id": NOT_TOKENS,
        "model_type": ("NaN", NO_LIMIT, "[[]]", '{"a": 1}', '"\\ud800"'),
    },
    "a planned model": {**dict.fromkeys(SHAPE, NOT_INTEGERS), "model_type": ("NaN", "[[]]", '{"a": 1}')},
    "a planned mixture": {
        **dict.fromkeys(SHAPE, NOT_INTEGERS),
        **dict.fromkeys(EXPERTS, NOT_INTEGERS),
        "n_shared_experts": NOT_INTEGERS,
        "first_k_dense_replace": NOT_INTEGERS,
        "rms_norm_eps": NOT_NUMBERS,
        "eos_token_id": NOT_TOKENS,
    },
    "experts": dict.fromkeys(EXPERTS, NOT_INTEGERS),
    "kind of a parallel draft": {"pard_token": NOT_INTEGERS},
    "a head": {
        **dict.fromkeys(("draft_vocab_size", "target_hidden_size"), NOT_INTEGERS),
        "norm_before_residual": NOT_FLAGS,
        "eagle_aux_hidden_state_layer_ids": ("[NaN, 1, 2]", "[1e30, 1, 2]", "[true, 1, 2]", "NaN"),
    },
    "a block drafter": {"block_size": NOT_INTEGERS},
    "a planned head": {"draft_vocab_size": NOT_INTEGERS},
    "a planned block drafter": {
        **dict.fromkeys(("block_size", "draft_vocab_size", "markov_rank"), NOT_INTEGERS),
        "aux_hidden_state_layer_ids": ("[NaN]", "[1e30]", "[true]", "NaN"),
        "sample_from_anchor": NOT_FLAGS,
    },
    "an adapter": {
        "r": ("NaN", "Infinity", "1e30", NO_LIMIT, "9" * 5000, "true", "1.5", '"8"'),
        "lora_alpha": NOT_NUMBERS,
        "use_rslora": ("NaN", "1", NO_LIMIT, '"no"'),
    },
}
CASES = [(name, field, text) for name, fields in READ.items() for field, texts in fields.items() for text in texts]


@pytest.mark.parametrize(("name", "field", "text"), CASES, ids=lambda text: text[:40])
def test_a_field_that_is_read_is_refused_by_name(tmp_path: Path, name: str, field: str, text: str) -> None:
    reader = READERS[name]
    with pytest.raises(ValueError, match=rf"\b{field} is .*; expected ") as raised:
        read(tmp_path, reader, {field: text})
    said = str(raised.value)
    assert str(tmp_path) in said
    assert reader.file in said
    assert "\n" not in said
    assert len(said) < len(str(tmp_path)) + 300


@pytest.mark.parametrize("text", NOT_INTEGERS)
def test_a_field_within_the_scaling_of_positions_is_refused_by_name(tmp_path: Path, text: str) -> None:
    rope = json.dumps(LLAMA["rope_scaling"])
    scaling = rope.replace('embeddings": 64', f'embeddings": {text}')
    with pytest.raises(ValueError, match=r"config\.json original_max_position_embeddings is .*; expected "):
        read(tmp_path, READERS["the engine's model"], {"rope_scaling": scaling})


@pytest.mark.parametrize("field", ["tie_word_embeddings", "attention_bias", "num_nextn_predict_layers", "head_dim"])
def test_a_null_is_a_field_left_out(tmp_path: Path, field: str) -> None:
    reader = READERS["the engine's model"]
    assert read(tmp_path, reader, {field: "null"}) == read(tmp_path, reader)


@pytest.mark.parametrize("config", [GPT_OSS, MIXTRAL, LLAMA], ids=["gpt_oss", "mixtral", "llama"])
def test_layers_by_the_million_are_refused_before_they_are_listed(tmp_path: Path, config: dict[str, Any]) -> None:
    reader = Reader("config.json", config, read_spec)
    with pytest.raises(ValueError, match="num_hidden_layers is 1000000000; expected at most 10000"):
        read(tmp_path, reader, {"num_hidden_layers": "1000000000"})


@pytest.mark.parametrize("field", ["hidden_size", "intermediate_size", "vocab_size"])
def test_a_model_larger_than_any_is_not_planned(tmp_path: Path, field: str) -> None:
    with pytest.raises(ValueError, match=r"config\.json describes a model of .* parameters; expected at most 1e\+15"):
        read(tmp_path, READERS["a planned model"], {field: str(2**53)})


def test_full_layers_are_listed_at_most_once_each(tmp_path: Path) -> None:
    kimi = LLAMA | {"model_type": "kimi_linear", "linear_attn_config": {"full_attn_layers": [1] * 5}}
    with pytest.raises(
        ValueError, match=r"linear_attn_config is .*; expected an object with full_attn_layers, at most"
    ):
        read(tmp_path, Reader("config.json", kimi, read_spec))


def test_an_index_of_more_tensors_than_any_small_model_has_is_read(tmp_path: Path) -> None:
    names = {f"model.layers.0.mlp.experts.{number}.weight": f"{number % 9}.safetensors" for number in range(100_000)}
    reader = READERS["an index of weights"]
    assert read(tmp_path, reader, {"weight_map": json.dumps(names)}) == [
        tmp_path / f"{number}.safetensors" for number in range(9)
    ]


def test_a_file_name_that_cannot_be_one_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"weight_map\.a is '\\ud800.safetensors'; expected a file next to it"):
        read(tmp_path, READERS["an index of weights"], {"weight_map": '{"a": "\\ud800.safetensors"}'})


STRANGE = ("NaN", "1e30", "[]", "{}", '"x"', "true", "[[1]]", '{"a": [NaN]}', NO_LIMIT, '"\\ud800"', '["re:("]')
WITHIN = ("quant_method", "config_groups", "ignore")


@pytest.mark.parametrize("field", WITHIN)
@pytest.mark.parametrize("text", STRANGE)
def test_a_strange_format_is_known_or_an_objection(tmp_path: Path, field: str, text: str) -> None:
    plain = QUANTISED["quantization_config"]
    inner = ", ".join([*(f'"{key}": {json.dumps(plain[key])}' for key in plain if key != field), f'"{field}": {text}'])
    spec = read(tmp_path, READERS["a quantised model"], {"quantization_config": f"{{{inner}}}"})
    assert isinstance(spec, ModelSpec)
    assert spec.stored is not None
    if spec.stored.objection:
        assert f"config.json: quantization_config.{field}" in spec.stored.objection
        assert "\n" not in spec.stored.objection
    else:
        assert spec.stored.name == "fp8"
