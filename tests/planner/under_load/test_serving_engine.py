"""A target under an engine, with what decides how long its steps take."""

import numpy as np
import pytest

from swiftspec.costmodel.steps import StepWork
from swiftspec.devices import DEVICES
from swiftspec.engines.description import Engine
from swiftspec.engines.sglang import SGLANG
from swiftspec.engines.vllm import VLLM
from swiftspec.models import known_model
from swiftspec.planner.under_load.serving_engine import DraftModel, ServingEngine


@pytest.mark.parametrize(
    ("engine", "late_s"),
    [
        (VLLM.at("0.25"), VLLM.late_round_s),
        (VLLM.at("0.26"), 0.0),
        (SGLANG.as_of("2025-12"), SGLANG.late_round_s),
        (SGLANG, 0.0),
    ],
)
def test_a_round_that_is_formed_late_takes_longer(engine: Engine, late_s: float) -> None:
    spec = known_model("llama-3.1-8b").spec
    draft = DraftModel(spec=known_model("llama-3.2-1b").spec, quant="bf16")
    on = ServingEngine(engine=engine, device=DEVICES["h100-sxm"], target=spec, quant="bf16", draft=draft)
    chains = on.chains(forward_rows=(2, 1, 1), rows=4, tokens=np.array([2]))
    work = StepWork(sequences=1, rows_each=4, cache_tokens=500, sampled=4)
    assert on.under_load(chains).step_s(work) - on.step_s(work) == pytest.approx(late_s + on.added.round_s)
    assert on.under_load().step_s(work) == on.step_s(work)
