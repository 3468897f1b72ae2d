"""Rules by which engines form a step from requests that decode and prompts that are not yet read.

Pure: the event simulation, the fast simulation of loads and this package's own engine call the same functions.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class StepRule(StrEnum):
    """Who goes first.

    decodes first: every running request decodes, and prompts are read in what is left of the step's tokens.
    prompts first: prompts are read in steps of their own, before anybody decodes.
    drafts first: this package's rule, see `batching`; prompts have tokens of their own beside decoding.
    """

    DECODES_FIRST = "decodes first"
    PROMPTS_FIRST = "prompts first"
    DRAFTS_FIRST = "drafts first"


class FormedStep(NamedTuple):
    """A step: whether those who decode are in it, and the tokens that are read of each prompt, in their order."""

    decodes: bool
    chunks: tuple[int, ...]


def form_step(rule: StepRule, *, step_tokens: int, decode_rows: int, prompts: Sequence[int]) -> FormedStep:
    """The next step.

    step_tokens: of a step, at most; whoever decodes is never left out for want of them. decode_rows: rows of all
    requests that decode. prompts: tokens that are left of every prompt, in the order in which they are read. Who has no
    room waits.
    """
    if rule is StepRule.PROMPTS_FIRST and prompts:
        return FormedStep(False, _in_order(prompts, step_tokens))
    return FormedStep(decode_rows > 0, _in_order(prompts, step_tokens - decode_rows))


def _in_order(prompts: Sequence[int], room: int) -> tuple[int, ...]:
    chunks = []
    for left in prompts:
        if room <= 0:
            break
        chunks.append(min(left, room))
        room -= chunks[-1]
    return tuple(chunks)
