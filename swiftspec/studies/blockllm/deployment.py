"""Deployment: the blocks of all tenants, the device groups that hold them, and what steps and messages cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Time of a forward over some rows: fixed_s + row_s x rows."""

    fixed_s: float
    row_s: float

    def __call__(self, rows: float, *, steps: int = 1) -> float:
        """Seconds of so many rows in so many steps."""
        return steps * self.fixed_s + self.row_s * rows

    def scaled(self, share: float) -> "StepTime":
        """Time of a share of the layers."""
        return StepTime(fixed_s=share * self.fixed_s, row_s=share * self.row_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Contiguous layers that are computed together.

    Parameters
    ----------
    name : str
    step : StepTime
    max_batch : int
        Requests of a step, at most.
    kv_bytes_per_token : float
    """

    name: str
    step: StepTime
    max_batch: int = 64
    kv_bytes_per_token: float = 0.0

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ValueError(f"max_batch of block {self.name} is {self.max_batch}; expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """Small stand-in for a block. While the block computes, the blocks behind it go on with the surrogate's output.

    Parameters
    ----------
    block, group : str
        The block, and the device group that holds the surrogate.
    cost_share : float
        Its time over the block's.
    accuracy : float
        Probability that its output is near enough to the block's for what was computed with it to be kept.
    """

    block: str
    group: str
    cost_share: float
    accuracy: float

    def __post_init__(self) -> None:
        for name, value in (("cost_share", self.cost_share), ("accuracy", self.accuracy)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name} of the surrogate of {self.block} is {value}; expected 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Links between device groups.

    Parameters
    ----------
    latency_s : float
        Of any message.
    bytes_per_s : float
        A group sends the KV of one request after another; hidden states do not wait for these.
    row_bytes : float
        Hidden states of one row.
    """

    latency_s: float = 0.0
    bytes_per_s: float = math.inf
    row_bytes: float = 0.0

    def hop_s(self, rows: int) -> float:
        """Time of hidden states from one group to another."""
        return self.latency_s + rows * self.row_bytes / self.bytes_per_s

    def move_s(self, num_bytes: float) -> float:
        """Time of KV from one group to another."""
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Blocks on device groups.

    Parameters
    ----------
    blocks : tuple of Block
    groups : mapping of str to tuple of str
        Blocks that each device group holds; a block on several groups has replicas.
    chains : mapping of str to tuple of str
        Blocks of each tenant, in the order of the forward.
    surrogates : tuple of Surrogate
        At most one of a block; none of a block that ends a chain.
    links : Links
    """

    blocks: tuple[Block, ...]
    groups: Mapping[str, tuple[str, ...]]
    chains: Mapping[str, tuple[str, ...]]
    surrogates: tuple[Surrogate, ...] = ()
    links: Links = field(default_factory=Links)

    def __post_init__(self) -> None:
        names = {block.name for block in self.blocks}
        if len(names) < len(self.blocks):
            raise ValueError("blocks have the same name twice; expected different names")
        for what, lists in (("group", self.groups), ("chain", self.chains)):
            for owner, listed in lists.items():
                if unknown := [name for name in listed if name not in names]:
                    raise ValueError(f"{what} {owner} has {unknown[0]}; expected one of {', '.join(sorted(names))}")
        for tenant, chain in self.chains.items():
            if not chain:
                raise ValueError(f"chain {tenant} is empty; expected at least one block")
            if homeless := [name for name in chain if not self.homes(name)]:
                raise ValueError(f"chain {tenant} has {homeless[0]}, which no group holds")
        self._check_surrogates()

    def _check_surrogates(self) -> None:
        blocks = [surrogate.block for surrogate in self.surrogates]
        for surrogate in self.surrogates:
            if surrogate.group not in self.groups:
                raise ValueError(f"the surrogate of {surrogate.block} is on {surrogate.group}; there is no such group")
            if blocks.count(surrogate.block) > 1 or not any(block.name == surrogate.block for block in self.blocks):
                raise ValueError(f"surrogates are of {', '.join(blocks)}; expected different blocks")
        for tenant, chain in self.chains.items():
            if chain[-1] in blocks:
                raise ValueError(f"chain {tenant} ends with {chain[-1]}, whose surrogate has nothing to hasten")

    def homes(self, block: str) -> tuple[str, ...]:
        """Groups that hold a block."""
        return tuple(group for group, held in self.groups.items() if block in held)
