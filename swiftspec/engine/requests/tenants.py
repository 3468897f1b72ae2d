"""Tenants of an engine: fine-tunes and adapters of its target that requests can ask for by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tenants import tenant_spec

__all__ = ["Tenant", "Tenants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A fine-tune or an adapter of the target, or the target itself.

    Attributes
    ----------
    number : int
        Its place in the engine; 0 is the target.
    name : str
        Its name for requests; that of the target is empty.
    directory : Path
        Its files. Those of an adapter have no chat template, as a rule.
    eos_token_ids : frozenset of int
        Tokens that end its output.
    weight_bytes : int
        Memory of the weights that it does not share with the target or with tenants before it.
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
        """Of all but the target."""
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
