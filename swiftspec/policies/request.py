"""Request: one prompt, and when its output ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from swiftspec.errors import FieldError
from swiftspec.policies.lookup.earlier_outputs import EarlierOutputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and when to stop.

    Parameters
    ----------
    prompt : tuple of int
        Token ids, at least one.
    max_new_tokens : int
        Output tokens at most, an end of sequence included.
    eos_token_ids : frozenset of int
        Generation ends with the first of these; it is part of the output.
    mask_token : int
        Token at which a parallel draft guesses a later one; -1 if the draft has none.
    ratio_tested : bool
        Whether the target chooses by the draft's probabilities. What it chooses after a row then depends on what was
        drafted there, and which rows are verified must not.
    num_output : int
        Tokens at the end of the prompt that are output already: of a request that is continued.
    earlier : EarlierOutputs or None
        Outputs of earlier requests, to which a policy that searches them adds this one's; None: it knows none.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    eos_token_ids: frozenset[int] = frozenset()
    mask_token: int = -1
    ratio_tested: bool = False
    num_output: int = 0
    earlier: EarlierOutputs | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("prompt is empty; at least one token is needed")
        if self.max_new_tokens < 1:
            raise FieldError("max_new_tokens", self.max_new_tokens, "expected at least 1")

    def rest(self, text: Sequence[int]) -> "Request":
        """The request that continues this one. text: the prompt, and a part of the output."""
        num_generated = len(text) - len(self.prompt)
        return replace(
            self,
            prompt=tuple(text),
            max_new_tokens=self.max_new_tokens - num_generated,
            num_output=self.num_output + num_generated,
        )

    @property
    def root_position(self) -> int:
        """Position of the last prompt token, the first root."""
        return len(self.prompt) - 1

    def clip(self, tokens: Sequence[int], *, num_generated: int) -> tuple[tuple[int, ...], bool]:
        """The part of `tokens` that belongs to the output after `num_generated` tokens, and whether it ends there."""
        room = self.max_new_tokens - num_generated
        for count, token in enumerate(tokens[:room], start=1):
            if token in self.eos_token_ids:
                return tuple(tokens[:count]), True
        return tuple(tokens[:room]), len(tokens) >= room
