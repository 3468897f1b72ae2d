"""Layouts: a zoo's chains of blocks on devices, and whole models on devices of their own, to compare with."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from swiftspec.errors import FieldError
from swiftspec.studies.blockllm.deployment import Block, Deployment, Links, StepTime
from swiftspec.studies.tenants.zoo import Zoo


class ChainBlock(NamedTuple):
    """A block of a chain, and its share of the model's layers."""

    block: str
    share: float


class Costs(NamedTuple):
    """Costs of a model, of which a block has its share of layers.

    Parameters
    ----------
    step : StepTime
        Of the whole model.
    overhead_s : float
        What a step of a block costs in addition, whatever its size.
    kv_bytes_per_token : float
    max_batch : int
    links : Links
    """

    step: StepTime
    overhead_s: float = 0.0
    kv_bytes_per_token: float = 0.0
    max_batch: int = 64
    links: Links = Links()

    def block(self, name: str, share: float) -> Block:
        """A block of a share of the layers."""
        part = self.step.scaled(share)
        step = StepTime(fixed_s=part.fixed_s + self.overhead_s, row_s=part.row_s)
        return Block(name=name, step=step, max_batch=self.max_batch, kv_bytes_per_token=share * self.kv_bytes_per_token)


def chains_of(zoo: Zoo) -> dict[str, tuple[ChainBlock, ...]]:
    """Chain of each tenant. Embedding and head are computed with the layers next to them."""
    chains: dict[str, tuple[ChainBlock, ...]] = {}
    for tenant in zoo.tenants:
        counted = ((run, sum(part.isdigit() for part in run.parts)) for run in zoo.runs(tenant))
        chains[tenant.name] = tuple(
            ChainBlock(f"{run} of {', '.join(run.tenants)}", count / zoo.spec.num_layers)
            for run, count in counted
            if count
        )
    return chains


def per_model(tenants: Sequence[str], costs: Costs, *, num_devices: int | None = None) -> Deployment:
    """A whole model for each tenant, and the devices dealt out among them; one each if not told how many."""
    devices = range(num_devices or len(tenants))
    if len(devices) < len(tenants):
        raise FieldError("num_devices", num_devices, f"expected at least one for each of {len(tenants)} tenants")
    return Deployment(
        blocks=tuple(costs.block(tenant, 1.0) for tenant in tenants),
        groups={f"device {device}": (tenants[device % len(tenants)],) for device in devices},
        chains={tenant: (tenant,) for tenant in tenants},
        links=costs.links,
    )


def shared_blocks(
    chains: Mapping[str, Sequence[ChainBlock]], costs: Costs, *, num_devices: int, num_for_shared: int | None = None
) -> Deployment:
    """Blocks of all chains on all devices; or shared ones on the first few only, and private ones dealt to the others.

    Parameters
    ----------
    chains : mapping
        Of each tenant.
    num_for_shared : int, optional
        Devices of the shared blocks, fewer than all.

    Raises
    ------
    ValueError
        If no device would be left for the private blocks.
    """
    blocks = {each.block: costs.block(*each) for chain in chains.values() for each in chain}
    devices = [f"device {number}" for number in range(num_devices)]
    if num_for_shared is None:
        groups = dict.fromkeys(devices, tuple(blocks))
    else:
        if not 1 <= num_for_shared < num_devices:
            raise ValueError(f"num_for_shared is {num_for_shared}; expected 1 to {num_devices - 1}")
        holders = [sum(name in {each.block for each in chain} for chain in chains.values()) for name in blocks]
        shared = tuple(name for name, held in zip(blocks, holders, strict=True) if held > 1)
        private = [name for name in blocks if name not in shared]
        rest = num_devices - num_for_shared
        groups = {
            device: shared if number < num_for_shared else tuple(private[(number - num_for_shared) % rest :: rest])
            for number, device in enumerate(devices)
        }
    return Deployment(
        blocks=tuple(blocks.values()),
        groups=groups,
        chains={tenant: tuple(each.block for each in chain) for tenant, chain in chains.items()},
        links=costs.links,
    )
