"""Small workloads, and load traces in the formats of those who publish them."""

from collections.abc import Sequence
from pathlib import Path

from swiftspec.artifacts.distributions import Arrivals, Distribution, Lengths, Process
from swiftspec.artifacts.workload import LoadTrace, RequestClass, Workload, WorkloadRequest
from swiftspec.files.document import Origin

ORIGIN = Origin(command="swiftspec test", created_utc="2026-01-01T00:00:00+00:00", versions={}, device="none")
CLASSES = (
    RequestClass(name="chat", ttft_s=0.5, tpot_s=0.05),
    RequestClass(name="batch", share=0.25),
    RequestClass(name="unused"),
)

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
2023-11-16 18:17:33.4590290,1555,19
"""

BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9-4b48-497b-892b-a58995247443,2,ChatGPT,36,0,36,Conversation log
19440192.0,1722ac82-0a46-4bf0-aa08-89794e7a2b3f,8,GPT-4,1779,123,1902,Conversation log
19440254.0,,3,ChatGPT,935,178,1113,API log
"""

BURSTGPT_1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
"""

MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}
{"timestamp": 3000, "input_length": 7236, "output_length": 794, "hash_ids": [0, 28]}
{"timestamp": 5999, "input_length": 2290, "output_length": 316, "hash_ids": [0, 42]}
{"timestamp": 5999, "input_length": 6760, "output_length": 3, "hash_ids": [0, 46]}
{"timestamp": 15000, "input_length": 915, "output_length": 355, "hash_ids": [0, 462]}
{"timestamp": 15000, "input_length": 915, "output_length": 355, "hash_ids": [0, 463]}
"""

# The fields of Qwen-Bailian's traces, as their README has them: seconds, and blocks of 16 tokens.
QWEN = (
    '{"chat_id": 55, "parent_chat_id": -1, "timestamp": 0.0, "input_length": 60, "output_length": 12, "type": "text", '
    '"turn": 1, "hash_ids": [0, 1, 2, 3]}\n'
    '{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 90, "output_length": 132, '
    '"type": "text", "turn": 2, "hash_ids": [0, 1, 2, 4, 5, 6]}\n'
)

ADASERVE = """[
  {"emission_time_ms": 0.0, "input_length": 100, "output_length": 128, "prompt": "def f(a, b):\\n", "slo_ratio": 1.2},
  {"emission_time_ms": 7799.5, "input_length": 810, "output_length": 128, "prompt": "Sum up:", "slo_ratio": -150.0},
  {"emission_time_ms": 8209.5, "input_length": 14, "output_length": 128, "prompt": "Cook", "slo_ratio": -50.0}
]
"""


def written(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def workload(*, arrivals_s: Sequence[float] = (0.5, 1.0, 2.0), names: Sequence[str] | None = None) -> Workload:
    """Requests of 10, 11, 12, .. prompt tokens at these times."""
    return Workload(
        origin=ORIGIN,
        arrivals=Arrivals(process=Process.POISSON, rate=1.5),
        prompt_tokens=Lengths(distribution=Distribution.LOGNORMAL, mean=11, cv=0.1),
        output_tokens=Lengths(distribution=Distribution.FIXED, tokens=5),
        seed=0,
        classes=CLASSES,
        requests=_requests(arrivals_s, names),
    )


def replayed(*, arrivals_s: Sequence[float] = (0.0, 1.0, 6.0)) -> Workload:
    of_trace = Lengths(distribution=Distribution.REPLAY)
    return Workload(
        origin=ORIGIN,
        arrivals=Arrivals(process=Process.REPLAY),
        prompt_tokens=of_trace,
        output_tokens=of_trace,
        seed=0,
        classes=CLASSES,
        requests=_requests(arrivals_s, None),
        trace=LoadTrace(
            format="azure",
            file="conv.csv",
            sha256="0" * 64,
            licence="CC-BY 4.0",
            left_out={"without output tokens": 1},
        ),
    )


def _requests(arrivals_s: Sequence[float], names: Sequence[str] | None) -> tuple[WorkloadRequest, ...]:
    names = names or ("chat",) * len(arrivals_s)
    return tuple(
        WorkloadRequest(arrival_s=arrival_s, prompt_tokens=10 + index, output_tokens=5, class_name=name)
        for index, (arrival_s, name) in enumerate(zip(arrivals_s, names, strict=True))
    )
