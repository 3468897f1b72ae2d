import pytest

from swiftspec.engines import ENGINES
from swiftspec.policies.effects import Role
from swiftspec.reports.formatting import (
    count,
    engine,
    gigabytes,
    milliseconds,
    percent,
    provenance_shares,
    signed_percent,
)
from swiftspec.timing.latency import Provenance
from tests.artifacts.test_plan import plan


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.1e-5, "0.041"), (9.876e-4, "0.988"), (0.0123456, "12.35"), (0.0999, "99.90"), (1.5, "1500")],
)
def test_milliseconds_have_as_many_figures_as_they_need(seconds: float, text: str) -> None:
    assert milliseconds(seconds) == text


def test_shares_and_sizes_have_their_unit() -> None:
    assert (percent(0.2049), signed_percent(-0.1), gigabytes(10.14e9)) == ("20.5 %", "-10.0 %", "10.1")
    assert [count(number, "device") for number in (0, 1, 2)] == ["0 devices", "1 device", "2 devices"]


def test_provenance_shares_come_largest_first_and_without_crumbs() -> None:
    shares = {Provenance.MEASURED: 0.25, Provenance.ASSUMED: 0.004, Provenance.INTERPOLATED: 0.746}
    assert provenance_shares(shares) == "interpolated 75 %, measured 25 %"


def test_every_engine_is_put_into_words() -> None:
    formats = {Role.TARGET: "bf16", Role.DRAFT: "bf16"}
    for name in ENGINES:
        text = engine(plan().model_copy(update={"engine": name, "quantisation": formats}))
        assert len(text) > len(name) + 10
    assert engine(plan().model_copy(update={"engine": "llamacpp"})) == "llama.cpp, as measured"
    int4 = plan().model_copy(update={"engine": "swiftspec", "quantisation": {Role.TARGET: "int4", Role.DRAFT: "bf16"}})
    assert engine(int4).endswith("forwards in int4 are SwiftSpec's, as published")
    own_host = plan().model_copy(update={"engine": "vllm", "host_s": 0.0004, "quantisation": formats})
    assert engine(own_host).endswith("; a host time of 0.400 ms a step, given")
    assert engine(plan()) == "this project's own, as measured on this machine"
