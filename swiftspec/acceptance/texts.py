"""Classes of text, by the names of data sets: acceptance differs more between them than between heads of one kind."""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, TypeVar

_Item = TypeVar("_Item")


class TextClass(StrEnum):
    """What a target writes."""

    CODE = "code"
    EDITS = "edits"  # of code: much of the output is copied from the prompt
    MATHEMATICS = "mathematics"
    CHAT = "chat"
    SUMMARIES = "summaries"
    RANDOM = "random"  # answers to random tokens or cut texts, ends ignored: a target then repeats itself


# The first pattern that a name holds decides, so narrow ones come first. Random tokens in a chat template are answered
# as chat is (SemiAnalysisAI/InferenceX pull request 649: 2.50 tokens per round of DeepSeek-R1, as on MT-Bench; 3.55
# without the template).
_NAMES: Final = (
    (r"random.*template", TextClass.CHAT),
    (r"random", TextClass.RANDOM),
    (r"swe-?bench|instructcoder|edit|aider", TextClass.EDITS),
    (r"humaneval|mbpp|livecode|\blcb\b|crosscode|\bcod(e|ing)\b", TextClass.CODE),
    (r"gsm8?k|math|aime", TextClass.MATHEMATICS),
    (r"cnn|daily ?mail|xsum|summar", TextClass.SUMMARIES),
    (
        r"mt-?bench|sharegpt|alpaca|arena|magpie|chat|prompts|question|\bqa\b|piqa|webqa|writing|roleplay|humanities",
        TextClass.CHAT,
    ),
)


def class_of(dataset: str) -> TextClass | None:
    """Class of a data set by its name, or the class of that name; None for a mixture, and for an unknown one."""
    return next((found for pattern, found in _NAMES if re.search(pattern, dataset.lower())), None)


def of_text(items: Sequence[_Item], text: str | None, dataset: Callable[[_Item], str]) -> list[_Item]:
    """The items on a data set; if there are none, those on its class of text; all, if no text is named."""
    if text is None:
        return list(items)
    wanted = class_of(text)
    same = [item for item in items if dataset(item).lower() == text.lower()]
    return same or [item for item in items if wanted is not None and class_of(dataset(item)) is wanted]
