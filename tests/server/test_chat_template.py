"""Chat templates against transformers' `apply_chat_template`, for templates in the style of five families."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from swiftspec.server.chat_template import ChatTemplate, TemplateSource
from tests.cli.tokenizer_files import write_printable_tokenizer

# Written for these tests, each with what templates of that family do.
LLAMA = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
CHATML = """{% for message in messages %}
{% if loop.first and message.role != 'system' %}<|im_start|>system
You are helpful.<|im_end|>
{% endif %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{% endif %}"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('roles must alternate user and assistant') }}
{%- endif %}
{%- if message.role == 'user' %}[INST] {{ message.content }} [/INST]
{%- else %} {{ message.content }}{{ eos_token }}{% endif %}
{%- endfor %}"""
GEMMA = """{{ bos_token }}{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- set ns.system = message.content + '\\n\\n' -%}{%- continue -%}{%- endif -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ (ns.system if message.role == 'user' else '') + message.content }}<end_of_turn>
{% set ns.system = '' -%}
{%- endfor -%}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
TOOLS = """{% for message in messages %}{{ message | tojson }}{{ '\\n' }}{% endfor %}
{{ {'umlaut': 'ä<b>'} | tojson(indent=2) }}"""
FAMILIES = {"llama": LLAMA, "chatml": CHATML, "mistral": MISTRAL, "gemma": GEMMA, "json": TOOLS}
TALKS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "hello"}],
    [
        {"role": "user", "content": " 2 + 2?\n"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "ä <|x|> {{ 7 * 7 }}"},
    ],
]


def template_of(directory: Path, file: Path | None = None) -> ChatTemplate | None:
    source = TemplateSource.of(directory, file)
    return None if source is None else ChatTemplate(source)


def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(TemplateSource(named={"default": source}, special_tokens={}, where="file"))


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_that_of_transformers(family: str, talk: list[dict[str, str]], tmp_path: Path) -> None:
    directory = model_directory(tmp_path, {"chat_template": FAMILIES[family]})
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    expected = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    template = template_of(directory)
    assert template is not None
    assert template.render(talk) == expected


def model_directory(folder: Path, config: dict[str, Any]) -> Path:
    write_printable_tokenizer(folder)
    special = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special | config))
    return folder


def test_a_file_comes_before_the_models_own_and_a_list_has_a_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "config {{ eos_token }}"}]
    directory = model_directory(tmp_path, {"chat_template": named, "eos_token": {"content": "</s>"}})
    of_config = template_of(directory)
    assert of_config is not None
    assert of_config.render(TALKS[0]) == "config </s>"
    (directory / "chat_template.jinja").write_text("jinja")
    of_file = template_of(directory)
    assert of_file is not None
    assert of_file.render(TALKS[0]) == "jinja"
    given = directory / "given"
    given.write_text("given {{ messages | length }}")
    of_given = template_of(directory, given)
    assert of_given is not None
    assert of_given.render(TALKS[1]) == "given 3"


def test_a_model_without_one_has_none(tmp_path: Path) -> None:
    assert template_of(tmp_path) is None
    assert template_of(model_directory(tmp_path, {})) is None


def test_a_conversation_that_a_template_refuses_is_the_clients_fault() -> None:
    template = compiled(MISTRAL)
    with pytest.raises(ValueError, match="roles must alternate"):
        template.render([{"role": "assistant", "content": "I begin"}])


@pytest.mark.parametrize(
    "source", ["{{ messages[9].content.x }}", "{{ 1 / 0 }}", "{{ messages.pop() }}", "{{ ''.x.y }}"]
)
def test_a_template_that_fails_is_told_in_a_sentence(source: str) -> None:
    with pytest.raises(ValueError, match="chat template fails"):
        compiled(source).render(TALKS[0])


@pytest.mark.parametrize(
    "source", ["{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{{ messages.__class__.__bases__ }}"]
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(ValueError, match="chat template fails"):
        compiled(source).render(TALKS[0])


def test_what_is_no_template_is_a_sentence_with_the_file() -> None:
    with pytest.raises(ValueError, match=r"some/file: not a chat template \(line 1"):
        ChatTemplate(TemplateSource(named={"default": "{% for %}"}, special_tokens={}, where="some/file"))
