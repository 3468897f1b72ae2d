"""Load test: a workload as its clients saw it over HTTP; what `swiftspec loadtest` writes."""

from typing import ClassVar

from pydantic import Field

from swiftspec.artifacts.load_metrics import LoadMetrics
from swiftspec.files.document import Document, Facts


class SentRequest(Facts):
    """One request. sent_s, chunks_s: when it was sent and its chunks came, after the start. error: why it failed."""

    sent_s: float
    chunks_s: tuple[float, ...]
    num_tokens: int = Field(ge=0)
    status: int = Field(ge=0)
    error: str = ""


class LoadTest(Document):
    """Figures of a server under a workload.

    url, model: the server, and the model as it names it.
    workload_sha256, workload: SHA-256 of the workload, and its arrivals in words.
    metrics: of the requests that ended well; rounds are chunks.
    tokens_per_iteration: output tokens after a request's first chunk over chunks after it, as GuideLLM counts them.
    failures: number of requests that failed, by sentence; without those that were refused.
    late_s: longest delay of a submission after its arrival.
    requests: in the order of the workload.
    """

    schema_name: ClassVar[str] = "swiftspec.load_test"
    schema_version: ClassVar[int] = 1

    url: str
    model: str
    workload_sha256: str
    workload: str
    metrics: LoadMetrics
    tokens_per_iteration: float = Field(ge=0)
    failures: dict[str, int]
    late_s: float = Field(ge=0)
    requests: tuple[SentRequest, ...] = Field(min_length=1)
