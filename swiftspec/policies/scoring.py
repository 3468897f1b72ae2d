"""Prompt scoring: how likely the target finds each token of a text. One prefill, after which the request ends.

To engines and schedulers it is a policy like the others, which commits at most the likeliest next token. It is not in
the registry, since it cannot serve a request for text.
"""

from dataclasses import dataclass
from typing import ClassVar

from swiftspec.policies.base import TargetOnly, check_shape
from swiftspec.policies.effects import Commit, Prefill, Program, Role
from swiftspec.policies.request import Request

_MOST_ROWS = 128  # with logits of the whole vocabulary at once: 77 MB of 150,000 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptScoring(TargetOnly):
    """Log-probs of a request's prompt, from its second token on.

    num_candidates: most likely tokens that are told beside each of the prompt's own. with_next: commit the token that
    most likely follows the prompt, and tell its log-prob, too.
    """

    name: ClassVar[str] = "prompt_scoring"
    target_rows: ClassVar[int] = 0
    num_candidates: int = 0
    with_next: bool = False

    def __post_init__(self) -> None:
        check_shape(self, num_candidates=1 if self.with_next else 0)

    def programs(self, request: Request) -> dict[Role, Program]:
        return {Role.TARGET: self._score(request.prompt)}

    def _score(self, prompt: tuple[int, ...]) -> Program:
        for first in range(0, len(prompt) - 1, _MOST_ROWS):
            scored = prompt[first + 1 : first + 1 + _MOST_ROWS]
            tokens = prompt[first : first + len(scored)]
            yield Prefill(Role.TARGET, tokens, first, scored=scored, num_candidates=self.num_candidates)
        if self.with_next:  # otherwise the last token is only scored: nothing follows it
            token = yield Prefill(Role.TARGET, prompt[-1:], len(prompt) - 1, num_candidates=self.num_candidates)
            yield Commit((token,))
