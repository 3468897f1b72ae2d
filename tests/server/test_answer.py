"""What a client gets of a request does not depend on how many tokens came in one commit, which is up to the policy."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftspec.engine.async_api import AsyncStream
from swiftspec.engine.chunks import Chunks
from swiftspec.errors import EngineError
from swiftspec.models.tokenizer import TextStream, Tokenizer
from swiftspec.policies import Request
from swiftspec.server.answer import Answer
from swiftspec.server.bodies import CompletionBody
from tests.cli.tokenizer_files import write_byte_tokenizer

MOST_CHUNKS = 4


class Stream:
    """The commits of a request, all there; of many, the last ones are merged, as for a slow consumer."""

    generation = None
    was_cancelled = False

    def __init__(self, tokenizer: Tokenizer, request: Request, commits: Sequence[tuple[int, ...]]) -> None:
        chunks = Chunks(request, tokenizer)
        self._chunks = deque(map(chunks.of, commits))
        while len(self._chunks) > MOST_CHUNKS:
            last, before = self._chunks.pop(), self._chunks.pop()
            self._chunks.append(type(last)(before.token_ids + last.token_ids, before.text + last.text, last.finish))

    @property
    def has_more_now(self) -> bool:
        return bool(self._chunks)

    async def wait(self) -> None:
        pass

    async def __anext__(self) -> Any:
        return self._chunks.popleft()

    def cancel(self) -> None:
        self.was_cancelled = True

    async def close(self) -> None:
        self.cancel()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Bytes, pairs of letters, and a special token 0."""
    merges = [("a", "b"), ("b", "a"), ("ab", "a")]
    return Tokenizer(write_byte_tokenizer(tmp_path_factory.mktemp("bytes"), merges=merges))


def token_id(tokenizer: Tokenizer, text: str) -> int:
    """Id of the one token of a text."""
    (token,) = tokenizer.encode(text, special_tokens=False)
    return token


def given_out(
    tokenizer: Tokenizer, tokens: tuple[int, ...], sizes: Sequence[int], stops: list[str]
) -> tuple[str, str | None, int]:
    """Text, reason and counted tokens of an output that comes in commits of these sizes, repeated."""

    async def answered() -> tuple[str, str | None, int]:
        request = Request(prompt=(1,), max_new_tokens=len(tokens), eos_token_ids=frozenset({0}))
        commits, at, number = [], 0, 0
        while at < len(tokens):
            commit, is_last = request.clip(tokens[at : at + sizes[number % len(sizes)]], num_generated=at)
            commits.append(tuple(commit))
            at, number = at + len(commit), number + 1
            if is_last:
                break
        answer = Answer(
            cast(AsyncStream, Stream(tokenizer, request, commits)),
            CompletionBody(prompt="x", stop=tuple(stops)),
            prompt=(1,),
            arrival_s=0.0,
            seed=None,
            text=TextStream(tokenizer) if stops else None,
            timeout_s=None,
            ended=lambda _: None,
        )
        text = "".join([piece.text async for piece in answer])
        return text, answer.finish, answer.usage.completion_tokens

    return asyncio.run(answered())


def token_ids(tokenizer: Tokenizer) -> st.SearchStrategy[tuple[int, ...]]:
    usual = [token_id(tokenizer, text) for text in ("a", "b", "ab", "ba", "aba")]
    of_a_character = [tokenizer.encode("\u20ac")[number] for number in range(3)]
    return st.lists(st.sampled_from([*usual, *of_a_character, 0]), min_size=1, max_size=24).map(tuple)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_text_reason_and_usage_are_the_same_however_tokens_are_committed(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    tokens = data.draw(token_ids(tokenizer))
    stops = data.draw(st.lists(st.text("ab\u20ac", min_size=1, max_size=4), max_size=3))
    one_by_one = given_out(tokenizer, tokens, [1], stops)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    assert given_out(tokenizer, tokens, sizes, stops) == one_by_one
    text, finish, count = one_by_one
    assert not any(stop in text for stop in stops)
    if finish == "stop" and 0 not in tokens[:count]:
        before, after = (tokenizer.decode(tokens[:end]) for end in (count - 1, count))
        assert not any(stop in before for stop in stops if "\u20ac" not in stop)
        assert any(stop in after for stop in stops)


def test_the_token_that_completes_a_stop_text_is_the_last_that_counts(tokenizer: Tokenizer) -> None:
    tokens = tuple(token_id(tokenizer, text) for text in ("b", "b", "ab", "a", "b"))
    assert given_out(tokenizer, tokens, [5], ["ab"]) == ("bb", "stop", 3)
    assert given_out(tokenizer, tokens, [5], ["abab"]) == ("bb", "stop", 5)
    assert given_out(tokenizer, tokens, [5], ["never"]) == ("bbabab", "length", 5)


def test_what_the_engine_says_of_its_failure_is_not_for_clients(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    class Failed(Stream):
        async def wait(self) -> None:
            raise EngineError("/models/secret: out of memory\nTraceback")

    async def work() -> None:
        request = Request(prompt=(1,), max_new_tokens=1, eos_token_ids=frozenset())
        answer = Answer(
            cast(AsyncStream, Failed(tokenizer, request, [])),
            CompletionBody(prompt="x"),
            prompt=(1,),
            arrival_s=0.0,
            seed=None,
            text=None,
            timeout_s=None,
            ended=lambda _: None,
        )
        await answer.start()

    with pytest.raises(EngineError, match=r"^the engine failed while this request ran; the server's log says why$"):
        asyncio.run(work())
    assert "secret" in caplog.text
