"""Requests as callers state them: a text or token ids, a tenant, a length, and whose they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tenants import tenant_spec
from swiftspec.models.tokenizer import Tokenizer
from swiftspec.policies import Request

if TYPE_CHECKING:
    from swiftspec.engine.model.sampling.sampler import AcceptanceMethod, Sampler, Sampling

_LEAST_TPOT_S = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A request, and whose it is.

    prompt_id: its name in timelines. client: whoever asked. tpot_s: limit on the time per token, a microsecond or more.
    tenant: 0 is the target itself.
    """

    prompt_id: str
    request: Request
    client: str = ""
    tpot_s: float | None = None
    tenant: int = 0

    def __post_init__(self) -> None:
        if self.tpot_s is not None and not _LEAST_TPOT_S <= self.tpot_s < inf:
            raise ValueError(f"tpot_s is {self.tpot_s}; expected {_LEAST_TPOT_S} or more seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A fine-tune or an adapter of the target, or the target itself.

    number: its place in the engine; 0 is the target, whose name is empty. directory: that of an adapter has no chat
    template, as a rule. weight_bytes: memory that it does not share with the target or with tenants before it.
    """

    number: int
    name: str
    directory: Path
    eos_token_ids: frozenset[int]
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Tenants:
    """The target and its tenants, in their order."""

    every: tuple[Tenant, ...]

    @classmethod
    def of(cls, directories: Mapping[str, str | Path], target: ModelSpec, target_directory: Path) -> Self:
        """Tenants by their names. ValueError if a directory is no fine-tune or adapter of the target."""
        found = [Tenant(number=0, name="", directory=target_directory, eos_token_ids=frozenset(target.eos_token_ids))]
        for number, (name, place) in enumerate(directories.items(), start=1):
            if not name:
                raise ValueError(f"tenant {place}: its name is empty; expected some text")
            directory = model_directory(place)
            eos = frozenset(tenant_spec(directory, target).eos_token_ids)
            found.append(Tenant(number=number, name=name, directory=directory, eos_token_ids=eos))
        return cls(tuple(found))

    def weighed(self, weight_bytes: Iterable[Sequence[int]]) -> Tenants:
        """With the memory that each but the target takes in some processes."""
        totals = [0, *map(sum, zip(*filter(None, weight_bytes), strict=True))]
        if len(totals) < len(self.every):
            return self
        return Tenants(
            tuple(replace(tenant, weight_bytes=total) for tenant, total in zip(self.every, totals, strict=True))
        )

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(str(tenant.directory.absolute()) for tenant in self.every[1:])

    def named(self, name: str | None) -> Tenant:
        """The tenant of a name, the target if there is none. ValueError if there is no such tenant."""
        if name is None:
            return self.every[0]
        for tenant in self.every[1:]:
            if tenant.name == name:
                return tenant
        known = ", ".join(tenant.name for tenant in self.every[1:]) or "none"
        raise ValueError(f"tenant is {name!r}; this engine has {known}")


class RequestMaker:
    """Makes the requests of an engine. tenants: whose ends of a sequence count. max_new_tokens: by default."""

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
        """Token ids of a text, which is cut if it is much too long for a request."""
        return self.tokenizer.encode(text, most=self._max_context, special_tokens=special_tokens)

    def known(self, tokens: Iterable[int], field: str = "prompt") -> tuple[int, ...]:
        """Token ids of a field. ValueError if one is none of the vocabulary."""
        tokens = tuple(tokens)
        if wrong := [token for token in tokens if not 0 <= token < self._vocab_size]:
            raise ValueError(f"{field} has token {wrong[0]}; expected 0 to {self._vocab_size - 1}")
        return tokens

    def made(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int | None = None,
        min_new_tokens: int = 0,
        acceptance_method: AcceptanceMethod = "follow",
        ignore_eos: bool = False,
        stop_token_ids: Sequence[int] = (),
        request_id: str | None = None,
        client: str = "",
        tpot_s: float | None = None,
        tenant: str | None = None,
        **sampling: Unpack[Sampling],
    ) -> tuple[Task, Sampler]:
        """A request as of `Engine.generate`, and how its tokens are drawn. ValueError names what is wrong."""
        from swiftspec.engine.model.sampling.sampler import sampler_of

        asked = self.tenants.named(tenant)
        stops = frozenset(self.known(stop_token_ids, "stop_token_ids"))
        request = Request(
            prompt=self.tokenize(prompt) if isinstance(prompt, str) else self.known(prompt),
            max_new_tokens=self._max_new_tokens if max_new_tokens is None else max_new_tokens,
            eos_token_ids=stops if ignore_eos else stops | asked.eos_token_ids,
        )
        name = request_id or str(next(self._numbers))
        task = Task(prompt_id=name, request=request, client=client, tpot_s=tpot_s, tenant=asked.number)
        if not 0 <= min_new_tokens <= request.max_new_tokens:
            raise ValueError(f"min_new_tokens is {min_new_tokens}; expected 0 to {request.max_new_tokens}, its most")
        self.known(sampling.get("logit_bias", ()), "logit_bias")
        # Those that would end an output are not wanted before its least length, whether or not they end this one.
        barred = request.eos_token_ids | asked.eos_token_ids if min_new_tokens else ()
        first = request.root_position
        return task, sampler_of(sampling, acceptance_method, barred=barred, barred_before=first + min_new_tokens)
