"""At a real size, against llama.cpp, OpenVINO GenAI and vLLM: random weights of Llama-3.2-1B's shape, on all cores.

`make bench` runs these. Packages come by name; `SWIFTSPEC_VLLM` may name an interpreter that has vLLM. Every
ratio is the other's time by ours, of engines that answer in turn; ours rounds as many bits as theirs.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tools.real_size.comparison import Result, compare
from tools.real_size.peers import CLASSES, Peers

pytestmark = pytest.mark.bench

MODEL = "llama-3.2-1b"
ROUNDS = 3
OURS = {"16 bits": "swiftspec bfloat16", "8 bits": "swiftspec int8"}
# One row is a read of all weights, for which every engine waits: no more is to be had in 16 bits.
LEAST = {"prompt of 512": 1.0, "prompt of 2048": 1.0, "one row": 1.0, "eight rows": 1.2}


@pytest.fixture(scope="module")
def peers() -> Peers:
    return Peers(Path("build/real_size"), vllm=os.environ.get("SWIFTSPEC_VLLM"))


def ratios(results: Sequence[Result], ours: str) -> Mapping[str, float]:
    return {result.question: result.ratios()[ours] for result in results}


@pytest.mark.parametrize("precision", CLASSES)
def test_it_is_at_least_as_fast_as_each_of_the_others(
    benchmark: BenchmarkFixture, peers: Peers, precision: str
) -> None:
    ours = peers.ours(MODEL, precision)
    others = list(peers.others(MODEL, precision))
    if not others:
        pytest.skip("; ".join(peers.missing))

    def beside_each() -> dict[str, Mapping[str, float]]:
        return {other.name: ratios(list(compare([*ours, other], rounds=ROUNDS)), OURS[precision]) for other in others}

    found = benchmark.pedantic(beside_each, rounds=1)
    least = {question: min(each[question] for each in found.values()) for question in LEAST}
    benchmark.extra_info |= {"ratio": min(least.values())} | {
        name: {question: round(ratio, 2) for question, ratio in each.items()} for name, each in found.items()
    }
    assert {question for question, ratio in least.items() if ratio < LEAST[question]} == set()
