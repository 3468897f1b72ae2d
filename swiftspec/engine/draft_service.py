"""A draft model that serves targets of other engines, from its loading to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swiftspec.devices.local import TREE_SLOTS, Device, check_device
from swiftspec.engine.checks import check_tree
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef
from swiftspec.models.draft_kinds import draft_facts
from swiftspec.models.spec import ModelSpec, model_directory
from swiftspec.models.tokenizer import vocabulary_digest
from swiftspec.policies import Policy
from swiftspec.policies.base import check_draft, drafts_elsewhere
from swiftspec.policies.effects import Role
from swiftspec.policies.registry import POLICIES
from swiftspec.scheduler.batching import BatchLimits

if TYPE_CHECKING:
    from swiftspec.engine.process.draft_server import DraftStats


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftService:
    """A draft at an address.

    policy: whose draft program runs. address: `ipc://FILE`, or `tcp://HOST:PORT`, which needs the file of a `secret`.
    devices: cores, or the one GPU. max_context: tokens of the longest text. num_requests: drafted for at once.
    """

    draft: ModelRef
    policy: Policy
    address: str
    secret: Path | None = None
    device: Device = "cpu"
    devices: Sequence[int] = (0,)
    max_context: int
    num_requests: int = 8

    def check(self) -> None:
        """ValueError for a policy that cannot draft for other engines, and for devices that are not there."""
        if not drafts_elsewhere(self.policy):
            able = ", ".join(name for name, policy in POLICIES.items() if drafts_elsewhere(policy()))
            raise FieldError("policy", self.policy.name, f"expected one that sends chains to a target: {able}")
        check_draft(self.policy, draft_facts(self.draft.model).kind)
        check_tree(self.policy, TREE_SLOTS[self.device])
        check_device(self.device)
        if self.max_context > (most := self._spec.max_position):
            raise FieldError("max_context", self.max_context, f"the draft has {most} positions")
        if self.address.startswith("tcp:") and self.secret is None:
            raise FieldError("address", self.address, "expected a --secret with an address that others can reach")

    def run(self, *, ready: Callable[[], None], is_over: Callable[[], bool]) -> DraftStats:
        """Load the model, bind the address, call `ready`, and draft until `is_over`.

        ValueError: as `check`, or if the model cannot be loaded or the address not be bound.
        """
        self.check()
        from swiftspec.engine.channel.curve import Curve, read_secret
        from swiftspec.engine.channel.introduction import Introduction
        from swiftspec.engine.channel.zmq_channel import Channel
        from swiftspec.engine.model.models import load_models, on_devices, warm_up
        from swiftspec.engine.process.draft_server import DraftServer
        from swiftspec.kernels.cpu_library import prepare_library

        curve = None if self.secret is None else Curve.derived(read_secret(self.secret))
        vocab_size = self._spec.vocab_size
        with Channel(self.address, bind=True, leads=False, vocab_size=vocab_size, curve=curve, serves=True) as channel:
            if self.device == "cpu" and self.draft.dtype != "bfloat16":
                prepare_library()
            introduction = Introduction.of(
                self.policy,
                vocab_size=vocab_size,
                vocabulary=vocabulary_digest(model_directory(self.draft.model)),
                num_requests=self.num_requests,
                max_context=self.max_context,
            )
            if self.device == "cpu":
                os.sched_setaffinity(0, set(self.devices))
            models = load_models(
                {Role.DRAFT: self.draft},
                max_context=self.max_context,
                tree_slots=TREE_SLOTS[self.device],
                num_sequences=self.num_requests,
                device=on_devices(self.device, self.devices),
            )
            warm_up(models)
            mask_token = draft_facts(self.draft.model).mask_token
            server = DraftServer(models[Role.DRAFT], channel, introduction, limits=BatchLimits(), mask_token=mask_token)
            ready()
            server.serve(is_over)
        return server.stats

    @property
    def _spec(self) -> ModelSpec:
        return ModelSpec.from_directory(model_directory(self.draft.model))
