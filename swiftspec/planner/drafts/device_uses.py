"""Ways to use devices: all in one group, replicas of as few as hold the target, or one of these with the rest idle."""

from collections.abc import Iterator, Sequence

from swiftspec.artifacts.kinds import DeviceUse, DraftingKind
from swiftspec.models import weight_bytes
from swiftspec.models.spec import ModelSpec


def fewest_devices(target: ModelSpec, quant: str, *, num_devices: int, usable_bytes: int) -> int | None:
    """Devices of each of several replicas: as few as hold the target's weights; None if there is room for one only."""
    parts = (count for count in range(1, num_devices // 2 + 1) if num_devices % count == 0)
    return next(
        (
            count
            for count in parts
            if target.objection(count) is None and weight_bytes(target, quant) / count < usable_bytes
        ),
        None,
    )


def replica_loads(clients: Sequence[int], replicas: int) -> tuple[int, ...]:
    """Clients of one replica, and of a single one that serves all."""
    return tuple(sorted({*(-(-load // replicas) for load in clients if load >= replicas), *clients}))


def uses_of(
    clients: Sequence[int], together: Sequence[DraftingKind], apart: Sequence[DraftingKind], *, devices: int, each: int
) -> Iterator[DeviceUse]:
    """The best of every way at every load. `apart`: kinds on the devices of one replica, at `replica_loads`."""
    replicas = devices // each
    own = [kind for kind in together if kind.own_devices]
    shared = [kind for kind in together if not kind.own_devices]
    for load in clients:
        yield from _use(shared, load, load, replicas=1, each=devices)
        yield from _use(own, load, load, replicas=1, each=devices)
        if load >= replicas:
            yield from _use(apart, load, -(-load // replicas), replicas=replicas, each=each)
        yield from _use(apart, load, load, replicas=1, each=each)


def _use(kinds: Sequence[DraftingKind], load: int, served: int, *, replicas: int, each: int) -> Iterator[DeviceUse]:
    """The fastest kind for `served` clients on each replica; lookups in text that is not the user's do not count."""
    found = [(kind, point) for kind in kinds if (point := kind.at(served)) is not None and not kind.is_bundled]
    if found:
        kind, point = max(found, key=lambda pair: pair[1].user_tokens_per_s)
        yield DeviceUse(
            clients=load,
            replicas=replicas,
            replica_devices=each,
            kind=kind.name,
            split=point.split,
            num_draft_tokens=point.num_draft_tokens,
            user_tokens_per_s=point.user_tokens_per_s,
            tokens_per_s=point.device_tokens_per_s * each * load / served,
        )
