"""Streams of servers, as their clients count them."""

import json

from swiftspec.loadtest.streams import StreamedCompletion, streamed


def events(*bodies: object) -> list[tuple[float, bytes]]:
    lines = [f"data: {json.dumps(body)}\n\n".encode() for body in bodies]
    return [*((float(number), line) for number, line in enumerate(lines)), (9.0, b"data: [DONE]\n\n")]


def completed(*bodies: object) -> StreamedCompletion:
    return streamed(events(*bodies), sent_s=0.0, answered_s=0.0, most_tokens=8)


def test_a_chunk_of_a_server_is_a_step_of_it() -> None:
    found = completed({"choices": [{"text": "a"}]}, {"choices": [{"text": "b c"}]}, {"usage": {"completion_tokens": 3}})
    assert (found.num_tokens, found.num_rounds, found.timings) == (3, 2, None)


def test_llamacpp_sends_a_chunk_for_every_token_and_says_which_were_drafted() -> None:
    timings = {"prompt_n": 5, "prompt_ms": 12.5, "cache_n": 3, "draft_n": 4, "draft_n_accepted": 2, "predicted_ms": 9.0}
    found = completed(
        *({"choices": [{"text": letter}]} for letter in "abcde"),
        {"choices": [{"text": ""}], "usage": {"completion_tokens": 5}, "timings": timings},
    )
    assert (found.num_tokens, len(found.chunks_s), found.num_rounds) == (5, 5, 3)
    assert found.timings is not None
    assert (found.timings.prompt_ms, found.timings.cache_n) == (12.5, 3)
