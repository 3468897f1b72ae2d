"""The `openai` package against a running server: `python openai_client.py URL`. Only that package is needed."""

import asyncio
import sys

from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

PROMPT = "def add(a, b):\n"


def main(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    (model,) = [model.id for model in client.models.list()]
    whole = client.completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0)
    assert whole.usage is not None
    parts = list(
        client.completions.create(
            model=model,
            prompt=PROMPT,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(part.choices[0].text for part in parts if part.choices) == whole.choices[0].text
    assert parts[-1].usage == whole.usage
    text = PROMPT + whole.choices[0].text
    scored = client.completions.create(model=model, prompt=text, max_tokens=0, echo=True, logprobs=1).choices[0]
    assert scored.logprobs is not None
    assert scored.text == "".join(scored.logprobs.tokens or []) == text
    assert (scored.logprobs.token_logprobs or [0.0])[0] is None
    talk = [{"role": "user", "content": "hello"}]
    chat = client.chat.completions.create(model=model, messages=talk, max_tokens=16, temperature=0, seed=3)
    assert chat.choices[0].message.role == "assistant"
    said = ""
    with client.chat.completions.create(
        model=model, messages=talk, max_completion_tokens=16, temperature=0, stream=True
    ) as stream:
        for chunk in stream:
            said += chunk.choices[0].delta.content or ""
    assert said == chat.choices[0].message.content
    asyncio.run(concurrently(url, model, whole.choices[0].text))
    refused(client, model)
    sys.stdout.write(
        "openai: models, completions, scored prompts, chat, streams, usage, 16 at once, cancelled streams, errors\n"
    )


async def concurrently(url: str, model: str, expected: str) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:

        async def ask() -> str:
            said = await client.completions.create(model=model, prompt=PROMPT, max_tokens=24, temperature=0)
            return str(said.choices[0].text)

        async def leave() -> None:
            stream = await client.completions.create(model=model, prompt=PROMPT, max_tokens=200, stream=True)
            async for _ in stream:
                await stream.close()
                return

        texts = await asyncio.gather(*(ask() for _ in range(16)), *(leave() for _ in range(4)))
        assert [text for text in texts if text is not None] == [expected] * 16


def refused(client: OpenAI, model: str) -> None:
    for kind, options in (
        (NotFoundError, {"model": "another"}),
        (BadRequestError, {"model": model, "suffix": "end"}),
        (BadRequestError, {"model": model, "max_tokens": 10**9}),
    ):
        try:
            client.completions.create(**{"prompt": PROMPT, **options})
        except kind:
            continue
        raise AssertionError(options)


if __name__ == "__main__":
    main(sys.argv[1])
