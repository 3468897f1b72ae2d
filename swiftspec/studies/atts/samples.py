"""A sample of a question as a program: the draft writes a segment, the target scores it, and perhaps writes on.

Sans-IO: the program yields what it wants, and is sent the answer. `driver` asks real servers, `simulation` simulated
ones; no clock, no text and no randomness here.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from swiftspec.policies.effects import Role
from swiftspec.studies.atts.document import AttsOptions, Ending


@dataclass(frozen=True, slots=True)
class Write:
    """Have a server continue the text by `num_tokens` at most. Answer: `Written`."""

    role: Role
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Score:
    """Have the target score the last segment. Answer: its perplexity."""


@dataclass(frozen=True, slots=True)
class Select:
    """Ask whether the target is to write on. Answer: a bool; with a barrier, once all samples have asked."""

    score: float


@dataclass(frozen=True, slots=True)
class NextTurn:
    """Begin another turn. No answer; with a barrier, once all samples have ended theirs."""


class Written(NamedTuple):
    """A segment. num_tokens: 0 if it has no text. ending: if the sample's answer is complete with it."""

    num_tokens: int
    ending: Ending | None = None


Effect = Write | Score | Select | NextTurn


def sample(options: AttsOptions) -> Generator[Effect, Any, Ending]:
    """The program of one sample. The draft's segment stays when it is taken over: the target writes behind it."""
    for turn in range(options.num_turns):
        if turn:
            yield NextTurn()
        last: Written = yield Write(Role.DRAFT, options.draft_tokens)
        if not last.num_tokens:
            return Ending.END_OF_SEQUENCE
        score: float = yield Score()
        if (yield Select(score)):
            last = yield Write(Role.TARGET, options.target_tokens)
        if last.ending is not None:
            return last.ending
    return Ending.TURNS
