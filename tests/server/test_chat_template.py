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
MARKED = """{% for message in messages %}{% if message.role == 'assistant' %}
{% generation %}{% set said = message.content %}{{ said }}{{ eos_token }}{% endgeneration %}{{ said }}
{% elif loop.last %}{% break %}{% else %}{{ pad_token }}{{ message.content }}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
OPTIONS = """{% set value = {'z': 'ä<b>', 'a': [1, none]} %}{{ value | tojson }}
{{ value | tojson(true) }} {{ value | tojson(indent='\\t') }} {{ value | tojson(ensure_ascii=True, sort_keys=True) }}
{{ value | tojson(separators=(',', ':'), indent=1) }}
{{ strftime_now('%Y') }} {{ documents | tojson }} {{ tools | tojson }} {{ cls_token }} {{ own_token }}"""
FAMILIES = {
    "llama": LLAMA,
    "chatml": CHATML,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "json": TOOLS,
    "marked": MARKED,
    "options": OPTIONS,
}
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
    known: dict[str, Any] = {"tools": [{"type": "function"}], "documents": [{"title": "t", "text": "ü"}]}
    expected = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True, own_token=3, **known)
    template = template_of(directory)
    assert template is not None
    assert template.render(talk, {"own_token": 3}, **known) == expected


def model_directory(folder: Path, config: dict[str, Any]) -> Path:
    write_printable_tokenizer(folder)
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<p>", "cls_token": "<c>"}
    special["tokenizer_class"] = "PreTrainedTokenizerFast"
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


@pytest.mark.parametrize("family", ["llama", "chatml", "gemma", "marked"])
@pytest.mark.parametrize("final", ["Sure, ", " the sum is", "4\n\n", "ä {{ 7 }}", "x"])
def test_the_last_message_is_continued_as_transformers_does(family: str, final: str, tmp_path: Path) -> None:
    talk = [*TALKS[1][:1], {"role": "assistant", "content": final}]
    directory = model_directory(tmp_path, {"chat_template": FAMILIES[family]})
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    expected = tokenizer.apply_chat_template(talk, tokenize=False, continue_final_message=True)
    template = template_of(directory)
    assert template is not None
    said = template.render(talk, add_generation_prompt=False, continue_final_message=True)
    assert said == expected
    assert final.strip() in said


def test_a_template_that_hides_the_last_message_cannot_continue_it() -> None:
    with pytest.raises(ValueError, match="cannot be continued"):
        compiled("{{ messages | length }}").render(TALKS[0], continue_final_message=True)
    with pytest.raises(ValueError, match="cannot be continued"):
        compiled("{{ messages[0].content | upper }}").render(TALKS[0], continue_final_message=True)
    with pytest.raises(ValueError, match="none to continue"):
        compiled(LLAMA).render([], continue_final_message=True)


@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
@pytest.mark.parametrize("names", [("default",), ("default", "tool_use"), ("tool_use", "rag", "default")])
def test_a_list_of_templates_and_a_folder_of_them_are_chosen_from_as_transformers_does(
    names: tuple[str, ...], tools: list[dict[str, Any]] | None, tmp_path: Path
) -> None:
    texts = {name: f"{name} {{{{ messages[0].content }}}} {{{{ tools | tojson }}}}" for name in names}
    listed = [{"name": name, "template": text} for name, text in texts.items()]
    (tmp_path / "list").mkdir()
    directory = model_directory(tmp_path / "list", {"chat_template": listed})
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    expected = tokenizer.apply_chat_template(TALKS[0], tools=tools, tokenize=False)
    tokenizer.save_pretrained(tmp_path / "saved")  # the default in chat_template.jinja, others in a folder
    for each in (directory, tmp_path / "saved"):
        template = template_of(each)
        assert template is not None
        assert template.render(TALKS[0], tools=tools) == expected


def test_a_list_without_a_default_says_so(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "a"}, {"name": "tool_use", "template": "b"}]
    template = template_of(model_directory(tmp_path, {"chat_template": named}))
    assert template is not None
    with pytest.raises(ValueError, match="has chat templates rag, tool_use; expected a default"):
        template.render(TALKS[0])
    assert template.render(TALKS[0], tools=[{}]) == "b"


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
