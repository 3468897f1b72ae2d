"""Memory of every device against its weights, KV and workspace. No simulation here."""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from swiftspec.artifacts.plan import GroupMemory
from swiftspec.devices import DeviceSpec
from swiftspec.engines.description import USABLE_SHARE
from swiftspec.models.quantisation import BF16_BYTES, QUANTISATIONS
from swiftspec.models.sharding import sharded
from swiftspec.models.spec import ModelSpec, weight_bytes
from swiftspec.planner.search.option import Option
from swiftspec.policies import Layout
from swiftspec.policies.base import sends_features
from swiftspec.policies.effects import Role
from swiftspec.scheduler.admission import BLOCK_TOKENS, num_blocks

# A graph per capture size, and the workspace of matrix products: assumed, for each model on a device.
GRAPHS_BYTES = 2**30
# Tokens of a prompt that are computed at a time, which bounds the activations.
_PREFILL_CHUNK = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModel:
    """A pair of models on a kind of device.

    specs: shape of each role's model.
    quantisation: format of each role's weights, by name.
    kv_dtype: format of keys and values, bf16 or fp8, of both models.
    usable_share: share of a device's memory that may be used.
    draft_device: of a draft that has devices of its own, where these are of another kind.
    """

    device: DeviceSpec
    specs: Mapping[Role, ModelSpec]
    quantisation: Mapping[Role, str]
    kv_dtype: str = "bf16"
    usable_share: float = USABLE_SHARE
    draft_device: DeviceSpec | None = None

    @property
    def is_recurrent(self) -> bool:
        """Whether the target keeps a state beside its KV cache."""
        return self.specs[Role.TARGET].is_recurrent

    def usable_bytes(self, roles: Collection[Role]) -> int:
        """Usable bytes of one device with parts of these models."""
        apart = None if Role.TARGET in roles else self.draft_device
        return int((apart or self.device).memory_bytes * self.usable_share)

    def most_devices(self, num_devices: int) -> int:
        """Devices of a node, at most `num_devices`, that the target can be divided over."""
        most = min(num_devices, self.device.devices_per_node)
        return next(count for count in range(most, 0, -1) if self.specs[Role.TARGET].objection(count) is None)

    def groups(self, option: Option, *, context: int) -> tuple[GroupMemory, ...]:
        """Memory in use on the devices of each group, for a request of `context` tokens, output included."""
        return tuple(
            GroupMemory(
                devices=devices,
                weights_bytes={role: held.weights_bytes for role, held in shards.items()},
                kv_bytes={role: held.kv_bytes(context, rows=_slots(option, role)) for role, held in shards.items()},
                reserve_bytes=_reserve_bytes(shards),
                usable_bytes=self.usable_bytes(shards),
            )
            for devices, shards in self._groups(option, context)
        )

    def deficit(self, option: Option, *, context: int) -> int:
        """Bytes that the fullest device lacks; 0 or less if the option fits."""
        return max(group.used_bytes - group.usable_bytes for group in self.groups(option, context=context))

    def num_blocks(self, option: Option, *, longest: int, targets_per_draft: float = 1.0) -> int:
        """Cache blocks of a target that there is memory for, those of the longest request at least."""
        tokens = self.cached_tokens(option, context=longest, targets_per_draft=targets_per_draft)
        return max(tokens // BLOCK_TOKENS, num_blocks(longest + option.policy.target_rows))

    def cached_tokens(self, option: Option, *, context: int, targets_per_draft: float = 1.0) -> int:
        """Tokens of all requests together whose keys and values the fullest device has room for.

        Each rank of attention in data parallel has those of its own requests.

        context: tokens of the longest request, which bounds the activations. targets_per_draft: targets whose requests
        share the room of a draft that has devices of its own.
        """
        ranks = self.specs[Role.TARGET].attention_ranks
        return ranks * min(
            int(
                (
                    self.usable_bytes(shards)
                    - sum(held.weights_bytes for held in shards.values())
                    - _reserve_bytes(shards)
                )
                // sum(held.bytes_per_token(context, rows=_slots(option, role)) for role, held in shards.items())
                / (targets_per_draft if Role.TARGET not in shards else 1)
            )
            for _, shards in self._groups(option, context)
        )

    def _groups(self, option: Option, context: int) -> Iterator[tuple[tuple[int, ...], "dict[Role, _Shard]"]]:
        for whose, devices in option.groups.items():
            roles = tuple(Role) if option.policy.layout is Layout.COLOCATED else (whose,)
            yield (
                devices,
                {
                    role: _shard(
                        self.specs[role],
                        self.quantisation[role],
                        option.degree(role),
                        context,
                        kv_dtype=self.kv_dtype,
                        embedded=self.specs[Role.TARGET].vocab_size if sends_features(option.policy) else 0,
                    )
                    for role in roles
                },
            )

    def too_big(self, smallest: Option, *, context: int, num_devices: int = 1) -> str:
        """One sentence: why not even `smallest` fits, how much memory is missing, and what would help.

        num_devices: that there are.
        """
        missing = self.deficit(smallest, context=context)
        (group,) = self.groups(smallest, context=context)
        held = f"{gigabytes(group.used_bytes)} of weights, KV and workspace on each device"
        count = len(group.devices)
        where = f"{count} {self.device.name}" if count > 1 else f"one {self.device.name}"
        if num_devices > self.device.devices_per_node:
            where += " of a node, and stages on several nodes (pipeline parallelism) are not planned"
        helpful = " or ".join(self._helpful(smallest, context=context)) or "another device"
        return (
            f"the target in {self.quantisation[Role.TARGET]} does not fit on {where}: {held} are "
            f"{gigabytes(missing)} more than the {gigabytes(group.usable_bytes)} usable of "
            f"{gigabytes(self.device.memory_bytes)}; {helpful} would help"
        )

    def _helpful(self, option: Option, *, context: int) -> Iterator[str]:
        """Remedies: more devices of a node, or fewer bits."""
        present = len(option.groups[Role.TARGET])
        for count in range(present + 1, self.device.devices_per_node + 1):
            if self.specs[Role.TARGET].objection(count) is not None:
                continue
            wider = dataclasses.replace(option, groups={Role.TARGET: tuple(range(count))})
            if self.deficit(wider, context=context) <= 0:
                yield f"{count} devices"
                break
        bits = QUANTISATIONS[self.quantisation[Role.TARGET]].weight_bits
        for name, quantisation in QUANTISATIONS.items():
            lighter = dataclasses.replace(self, quantisation={**self.quantisation, Role.TARGET: name})
            if quantisation.weight_bits < bits and lighter.deficit(option, context=context) <= 0:
                yield name
                break


class _Shard(NamedTuple):
    """One device's part of one model."""

    spec: ModelSpec
    weights_bytes: int
    activation_bytes: int
    kv_dtype: str

    def kv_bytes(self, context: int, *, rows: int) -> int:
        """Of a sequence of `context` tokens and a tree of `rows`, windows and states included."""
        growing = self.spec.kv_bytes_per_token(self.kv_dtype) * (context + rows)
        return growing + self.spec.fixed_bytes(self.kv_dtype, context=context, rows=rows)

    def bytes_per_token(self, context: int, *, rows: int) -> float:
        """Of each token of sequences of `context` tokens, their windows and states spread over them."""
        fixed = self.spec.fixed_bytes(self.kv_dtype, context=context, rows=rows)
        return self.spec.kv_bytes_per_token(self.kv_dtype) + fixed / context


@cache
def _shard(spec: ModelSpec, quantisation: str, degree: int, context: int, *, kv_dtype: str, embedded: int) -> _Shard:
    """embedded: tokens of the target's embedding, which a head apart from it holds, though it proposes fewer."""
    held = sharded(spec, degree)
    # The residual stream and a layer's widest results, twice each: a layer's input and its output.
    widest = held.hidden_size + held.query_size + 2 * held.kv_size + 2 * held.intermediate_size
    return _Shard(
        spec=held,
        weights_bytes=weight_bytes(held, quantisation)
        + _undivided_bytes(spec, held)
        + max(0, embedded - spec.vocab_size) * spec.hidden_size * BF16_BYTES,
        activation_bytes=2 * min(context, _PREFILL_CHUNK) * widest * BF16_BYTES,
        kv_dtype=kv_dtype,
    )


def _undivided_bytes(spec: ModelSpec, held: ModelSpec) -> int:
    """Bytes that a shard's shape leaves out: every rank holds the whole embedding in addition to its part of the head.

    A tied head shares the embedding only while both are whole.
    """
    if held.vocab_size == spec.vocab_size:
        return 0
    counted = 0 if spec.tie_word_embeddings else held.vocab_size
    return (spec.vocab_size - counted) * spec.hidden_size * BF16_BYTES


def _slots(option: Option, role: Role) -> int:
    """Slots of the tree, in addition to the prefix."""
    return option.policy.target_rows if role is Role.TARGET else option.policy.draft_rows


def _reserve_bytes(shards: Mapping[Role, _Shard]) -> int:
    """Reserve for activations; the models of a group take turns, so they share it."""
    return GRAPHS_BYTES * len(shards) + max(held.activation_bytes for held in shards.values())


def gigabytes(num_bytes: float, *, decimals: int = 1) -> str:
    """`141.2 GB`, decimal as memory is sold."""
    return f"{num_bytes / 1e9:.{decimals}f} GB"
