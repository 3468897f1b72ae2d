"""Texts of any length from traced ones: prompts cut or repeated, outputs continued with those of the next prompts.

A workload has lengths and no texts, so its load and its acceptance are independent of each other.
"""

from collections.abc import Sequence
from itertools import count

from swiftspec.artifacts.prompts import stretched
from swiftspec.artifacts.trace import Guesser, TracedPrompt
from swiftspec.policies.effects import Candidates
from swiftspec.simulator.oracle import CandidatePool, TraceOracle


class StretchedText:
    """A text of wanted lengths that begins with a traced prompt.

    prompts: a trace's.
    index: index of the first one.
    prompt_tokens: length of the prompt: the traced one's last tokens, or it over and over. The traced one's if None.
    output_tokens: length of the output: the first tokens of the traced one's, of the next one's and so on.
    """

    def __init__(
        self, prompts: tuple[TracedPrompt, ...], index: int, *, prompt_tokens: int | None, output_tokens: int
    ) -> None:
        traced = prompts[index].prompt_tokens
        length = len(traced) if prompt_tokens is None else prompt_tokens
        self.prompt: list[int] = stretched(traced.tolist(), length)
        self.output: list[int] = []
        self.indices: list[int] = []
        for number in count(index):
            self.indices.append(number % len(prompts))
            self.output += prompts[number % len(prompts)].target_tokens.tolist()
            if len(self.output) >= output_tokens:
                break
        del self.output[output_tokens:]


class StretchedOracle(TraceOracle):
    """Answers for a stretched text. Its tokens' candidates are shared with all others of the pool."""

    def __init__(
        self, pool: CandidatePool, prompts: tuple[TracedPrompt, ...], text: StretchedText, *, seed: Sequence[int]
    ) -> None:
        first = text.indices[0]
        super().__init__(pool, prompts[first], prompt_index=first, seed=seed)
        self._set_path(text.prompt, text.output)
        self._text = text
        self._chained: dict[tuple[int, Guesser, int], list[Candidates]] = {}

    def _recorded(self, num_candidates: int, guesser: Guesser, ahead: int) -> list[Candidates]:
        if len(self._text.indices) == 1:
            return super()._recorded(num_candidates, guesser, ahead)
        key = (num_candidates, guesser, ahead)
        if key not in self._chained:
            parts = (self._pool.of(index, num_candidates, guesser, ahead) for index in self._text.indices)
            self._chained[key] = [candidates for part in parts for candidates in part]
        return self._chained[key]


class ReadOracle(TraceOracle):
    """Answers for a program that reads a text and asks for no guesses."""

    def __init__(self, text: StretchedText) -> None:
        self._set_path(text.prompt, text.output)
