from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftspec.scheduler.step_rules import StepRule, form_step

PROMPTS = st.lists(st.integers(1, 5000), max_size=8)


@pytest.mark.parametrize(
    ("rule", "decoding", "prompts", "decodes", "chunks"),
    [
        (StepRule.DECODES_FIRST, 10, [50, 80, 5], True, (50, 40)),
        (StepRule.DECODES_FIRST, 100, [50], True, ()),
        (StepRule.DECODES_FIRST, 0, [250], False, (100,)),
        (StepRule.PROMPTS_FIRST, 10, [50, 80, 5], False, (50, 50)),
        (StepRule.PROMPTS_FIRST, 10, [], True, ()),
    ],
)
def test_a_step_of_a_hundred_tokens(
    rule: StepRule, decoding: int, prompts: Sequence[int], decodes: bool, chunks: tuple[int, ...]
) -> None:
    assert form_step(rule, step_tokens=100, decode_rows=decoding, prompts=prompts) == (decodes, chunks)


@given(
    rule=st.sampled_from([StepRule.DECODES_FIRST, StepRule.PROMPTS_FIRST]),
    decoding=st.integers(0, 300),
    prompts=PROMPTS,
)
def test_a_step_keeps_its_budget_and_its_order(rule: StepRule, decoding: int, prompts: list[int]) -> None:
    formed = form_step(rule, step_tokens=256, decode_rows=decoding, prompts=prompts)
    read = sum(formed.chunks)
    assert read + (decoding if formed.decodes else 0) <= max(256, decoding)
    assert formed.decodes == (decoding > 0 and not (rule is StepRule.PROMPTS_FIRST and prompts))
    # All but the last that is read are read whole: nobody overtakes.
    whole = formed.chunks[:-1]
    assert list(whole) == prompts[: len(whole)]
    assert all(0 < tokens <= left for tokens, left in zip(formed.chunks, prompts, strict=False))
    assert bool(formed.chunks) or not prompts or decoding >= 256
