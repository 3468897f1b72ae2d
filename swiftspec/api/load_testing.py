"""Load test of a server, as `swiftspec loadtest` runs it."""

from hashlib import sha256
from pathlib import Path

from swiftspec.api.inputs import Prompts, read_texts
from swiftspec.artifacts.load_report import LoadTest, SentRequest
from swiftspec.artifacts.workload import Workload
from swiftspec.files.document import Origin
from swiftspec.loadtest import SentLoad, ServerClient, drawn_prompts, encoded_prompts, send_workload
from swiftspec.progress import Stages, silent


def load_test(
    url: str,
    workload: Workload | Path | str,
    prompts: Prompts,
    *,
    api_key: str = "",
    seed: int = 0,
    limit: int | None = None,
    stages: Stages = silent,
) -> LoadTest:
    """Send a workload to a server of OpenAI's API, and measure what its clients see.

    The server tokenises the prompts (`/tokenize`, as vLLM's does), counts the tokens of its streams, and ignores ends
    of sequence when asked to; a request's output then has exactly the workload's length.

    workload: its requests come at their times, or when a client of the closed loop is free.
    prompts: texts, of which one is drawn for each request by the seed, and cut or repeated to its length; at most
    `limit`.

    ValueError: if the server does not answer, or no request ended well.
    """
    asked = workload if isinstance(workload, Workload) else Workload.load(Path(workload))
    model, sent = send(url, asked, prompts, api_key=api_key, seed=seed, limit=limit, stages=stages)
    ended = [answer for answer in sent.answers if not answer.error]
    later_rounds = sum(answer.num_rounds - 1 for answer in ended)
    # How many tokens came with the first chunk is not told; a target's first commit has one.
    later_tokens = sum(answer.num_tokens - 1 for answer in ended)
    return LoadTest(
        origin=Origin.here(),
        url=url,
        model=model,
        workload_sha256=sha256(asked.to_bytes()).hexdigest(),
        workload=str(asked.arrivals),
        metrics=sent.metrics,
        tokens_per_iteration=later_tokens / later_rounds if later_rounds else 0.0,
        failures=sent.failures,
        late_s=sent.late_s,
        requests=tuple(
            SentRequest(
                sent_s=answer.sent_s - sent.start_s,
                chunks_s=tuple(chunk_s - sent.start_s for chunk_s in answer.chunks_s),
                num_tokens=answer.num_tokens,
                status=answer.status,
                error=answer.error,
            )
            for answer in sent.answers
        ),
    )


def send(
    url: str, workload: Workload, prompts: Prompts, *, api_key: str, seed: int, limit: int | None, stages: Stages
) -> tuple[str, SentLoad]:
    """The model's name, and the workload as it was answered. As `load_test`."""
    workload.check_arrivals("a load test")
    client = ServerClient(url, api_key=api_key)
    model = client.model()
    texts = read_texts(prompts, limit)
    encoded = encoded_prompts(client, texts, model=model)
    with stages("load test") as progress:
        drawn = drawn_prompts(workload, encoded, seed=seed, names=[text.prompt_id for text in texts])
        return model, send_workload(client, workload, drawn, model=model, progress=progress)
