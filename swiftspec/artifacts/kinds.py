"""Kinds of drafts on one target, side by side at several loads: what each does, and up to which load it pays."""

from pydantic import Field

from swiftspec.artifacts.gain import Gain
from swiftspec.files.document import Facts, Share
from swiftspec.timing.latency import Provenance


class KindPoint(Facts):
    """The best shape of a kind while some clients decode together.

    candidate: `head_chain 8 (num_draft_tokens=4)`.
    num_draft_tokens: most tokens that are drafted for a verification of one client; 0 without a draft.
    user_tokens_per_s: what one client sees while it decodes.
    device_tokens_per_s: output tokens of all clients over all devices, the time to first tokens included.
    tokens_per_round: of one client, the bonus token included.
    draft_share, verify_share: shares of the time in which the models compute, prompts included. A draft on devices of
        its own computes beside the target.
    method: how clients were simulated, as `SimulatedLoad.method` has it.
    gain: of a user's speed over decoding without a draft; None of that itself.
    pays_above: by draft tokens of each shape: tokens per round above which it is faster than no draft. Of chains that
        were not simulated a round's time is a closed form, which is as far off as that of the nearest simulated one.
    """

    clients: int = Field(ge=1)
    policy: str
    split: str
    candidate: str
    num_draft_tokens: int = Field(ge=0)
    user_tokens_per_s: float = Field(gt=0)
    device_tokens_per_s: float = Field(gt=0)
    tokens_per_round: float = Field(gt=0)
    draft_share: Share
    verify_share: Share
    method: str
    gain: Gain | None = None
    pays_above: dict[int, float] = Field(default_factory=dict)


class DraftMemory(Facts):
    """What a kind of draft takes of memory and of the prefix cache, in its shape at the lowest load.

    draft_bytes: weights of the draft on each of its devices. cached_tokens: tokens of all requests together that the
    target's devices have room for. read_again: tokens of each matched prefix that are read again, since the draft needs
    the target's hidden states of them.
    """

    draft_bytes: int = Field(ge=0)
    cached_tokens: int = Field(ge=0)
    read_again: int = Field(ge=0)


class DeviceUse(Facts):
    """The best kind of draft for some clients, on devices divided into equal replicas or left idle.

    clients: of all replicas together.
    replicas, replica_devices: devices beside these are idle.
    kind, split: `eagle3`, `1+1` where its draft has devices of its own.
    user_tokens_per_s, tokens_per_s: of one client, and of all.
    """

    clients: int = Field(ge=1)
    replicas: int = Field(ge=1)
    replica_devices: int = Field(ge=1)
    kind: str
    split: str
    num_draft_tokens: int = Field(ge=0)
    user_tokens_per_s: float = Field(gt=0)
    tokens_per_s: float = Field(gt=0)


class DraftingKind(Facts):
    """A kind of draft and what it does at every load.

    name: `eagle3`, or `llama-3.2-1b (own)` where the draft has devices of its own.
    draft: model; empty without one.
    own_devices: whether the draft has devices of its own.
    provenance: of its acceptance; None without a draft.
    basis: where its acceptance comes from, a clause.
    warning: what to know of it, a clause; empty for nothing.
    is_bundled: whether it is that of the bundled text, which nobody asked for.
    acceptance_spread: relative standard deviation of its tokens per round.
    points: by ascending load; empty if it cannot be planned.
    memory: None if it cannot be planned.
    reason: why there are none, or no more of them.
    pays_up_to: clients up to which it is faster than no draft, from the lowest load at which it is; None if it never
        is.
    is_open: whether it still was at the highest load.
    """

    name: str
    draft: str = ""
    own_devices: bool = False
    provenance: Provenance | None = None
    basis: str = ""
    warning: str = Field(default="", exclude_if=lambda warning: not warning)
    is_bundled: bool = Field(default=False, exclude_if=lambda is_bundled: not is_bundled)
    acceptance_spread: float = Field(default=0.0, ge=0)
    points: tuple[KindPoint, ...] = ()
    memory: DraftMemory | None = None
    reason: str = ""
    pays_up_to: float | None = None
    is_open: bool = False

    def at(self, clients: int) -> KindPoint | None:
        """Its point at a load, if it has one."""
        return next((point for point in self.points if point.clients == clients), None)


class KindComparison(Facts):
    """All kinds of drafts on one target.

    num_devices, context: devices in use; prompt tokens.
    clients: loads that were asked for, ascending.
    kinds: the first one is decoding without a draft.
    engine: the engine that serves and the limits of its steps, a clause.
    kernels: where the devices' times are from, a phrase.
    uses: at every load the devices in one group, as replicas of as few as hold the target, and one of these alone.
    price_per_hour: of one device, in any currency.
    host_s: the user's own host time of a step in seconds; None if it is the engine's.
    routing: of a target with experts, how consecutive tokens agree about them and where that is from, a clause.
    """

    target: str
    device: str
    num_devices: int
    quantisation: str
    context: int
    clients: tuple[int, ...]
    kinds: tuple[DraftingKind, ...]
    engine: str
    routing: str = ""
    kernels: str = ""
    uses: tuple[DeviceUse, ...] = ()
    price_per_hour: float | None = Field(default=None, gt=0, exclude_if=lambda found: found is None)
    host_s: float | None = Field(default=None, ge=0, exclude_if=lambda found: found is None)

    @property
    def plain(self) -> DraftingKind:
        """Decoding without a draft."""
        return self.kinds[0]

    def ranked(self, clients: int) -> list[tuple[DraftingKind, KindPoint]]:
        """Kinds that serve so many clients, the fastest for a user first; one by the bundled text stands last."""
        found = [(kind, point) for kind in self.kinds if (point := kind.at(clients)) is not None]
        return sorted(found, key=lambda pair: (pair[0].is_bundled, -pair[1].user_tokens_per_s))
