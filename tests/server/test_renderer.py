"""Templates in a process of their own: whatever they compute, the next conversation is rendered."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from swiftspec.server.chat_template import TemplateSource
from swiftspec.server.renderer import Renderer

TALK = [{"role": "user", "content": "hello"}]
PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}{% endfor %}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def source(text: str) -> TemplateSource:
    return TemplateSource(named={"default": text}, special_tokens={}, where="some/file")


def run(templates: list[str], work: Callable[[Renderer], Awaitable[Any]]) -> Any:
    async def with_renderer() -> Any:
        renderer = Renderer([source(text) for text in templates])
        try:
            await renderer.start()
            return await work(renderer)
        finally:
            await renderer.close()

    return asyncio.run(with_renderer())


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (ENDLESS, "does not end within 5 s"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "maximum recursion depth"),
        ("{{ messages[0].content * 10**9 }}", "MemoryError"),
        ("{{ messages[0].content * 10**7 }}", "50000000 characters"),
        ("{{ [1] * 10**9 }}", "MemoryError"),
        ("{{ raise_exception('a' * 10**6) }}", r"messages: a+\.\.\."),
        ("{{ ''.__class__.__mro__ }}", "chat template fails"),
    ],
)
def test_what_a_template_computes_harms_nobody_else(template: str, says: str) -> None:
    async def work(renderer: Renderer) -> None:
        with pytest.raises(ValueError, match=says) as refused:
            await renderer.render(1, {"messages": TALK})
        assert len(str(refused.value)) < 400
        assert await renderer.render(0, {"messages": TALK}) == "user: hello"

    run([PLAIN, template], work)


@pytest.mark.parametrize("template", ["{% for %}", "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "{% include 'x' "])
def test_what_is_no_template_is_a_sentence_at_the_start(template: str) -> None:
    async def nothing(_: Renderer) -> None:
        pass

    with pytest.raises(ValueError, match="some/file: not a chat template"):
        run([PLAIN, template], nothing)


def test_a_caller_who_leaves_does_not_get_the_next_ones_answer() -> None:
    async def work(renderer: Renderer) -> list[str]:
        leaving = [asyncio.create_task(renderer.render(0, {"messages": TALK * (1 + number)})) for number in range(20)]
        await asyncio.sleep(0)
        for each in leaving[::2]:
            each.cancel()
        texts = [await each for each in leaving[1::2]]
        assert await renderer.render(0, {"messages": TALK}) == "user: hello"
        return texts

    assert [text.count("user") for text in run([PLAIN], work)] == list(range(2, 21, 2))


def test_a_process_that_is_gone_is_replaced() -> None:
    async def work(renderer: Renderer) -> None:
        assert renderer._process is not None
        renderer._process.kill()
        await renderer._process.wait()
        with suppress(ValueError):  # the one that finds it gone
            await renderer.render(0, {"messages": TALK})
        assert await renderer.render(0, {"messages": TALK}) == "user: hello"

    run([PLAIN], work)


def test_odd_texts_and_arguments_come_through() -> None:
    async def work(renderer: Renderer) -> str:
        talk = [{"role": "user", "content": "\u00e4\u20ac\U0001f600\x00\ud83d"}]
        return str(await renderer.render(0, {"messages": talk, "arguments": {"n": 10**30, "x": [1.5, None, True]}}))

    assert run(["{{ messages[0].content }}|{{ n }}|{{ x }}"], work).endswith(
        "|1000000000000000000000000000000|[1.5, None, True]"
    )
