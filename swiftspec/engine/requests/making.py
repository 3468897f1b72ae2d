"""Requests made of what callers state: a text or token ids, a tenant, a length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from swiftspec.engine.requests.task import Task
from swiftspec.engine.requests.tenants import Tenants
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.policies import Request

__all__ = ["RequestMaker"]


class RequestMaker:
    """Makes the requests of an engine.

    Parameters
    ----------
    tokenizer : Tokenizer
    tenants : Tenants
        Whose ends of a sequence count.
    vocab_size : int
    max_context : int
        Tokens of the longest request.
    max_new_tokens : int
        Output tokens of requests that do not say.
    """

    def __init__(
        self, tokenizer: Tokenizer, tenants: Tenants, *, vocab_size: int, max_context: int, max_new_tokens: int
    ) -> None:
        self.tokenizer = tokenizer
        self.tenants = tenants
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._max_new_tokens = max_new_tokens
        self._numbers = count()

    def tokenize(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text; of one that is much too long for a request only the beginning."""
        return self.tokenizer.encode(text, most=self._max_context, special_tokens=special_tokens)

    def known(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Token ids. ValueError if one is none of the vocabulary."""
        if wrong := [token for token in tokens if not 0 <= token < self._vocab_size]:
            raise ValueError(f"prompt has token {wrong[0]}; expected 0 to {self._vocab_size - 1}")
        return tuple(tokens)

    def task(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int | None,
        request_id: str | None,
        *,
        tenant: str | None = None,
        ignore_eos: bool = False,
    ) -> Task:
        """A request with its name and its tenant's number. ValueError if a token or the tenant is unknown."""
        asked = self.tenants.named(tenant)
        request = Request(
            prompt=self.tokenize(prompt) if isinstance(prompt, str) else self.known(prompt),
            max_new_tokens=self._max_new_tokens if max_new_tokens is None else max_new_tokens,
            eos_token_ids=frozenset() if ignore_eos else asked.eos_token_ids,
        )
        return Task(prompt_id=request_id or str(next(self._numbers)), request=request, tenant=asked.number)
