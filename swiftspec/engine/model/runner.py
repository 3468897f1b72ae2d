"""A decoder with the caches of its sequences, as a role's process or a recorder uses it."""

from collections.abc import Sequence
from typing import Self

import torch

from swiftspec.devices.local import usable_device
from swiftspec.engine.model.cpu.model import CpuDecoder
from swiftspec.engine.model.drafts.features import FeatureTaps
from swiftspec.engine.model.forward_batch import BatchResult, DeviceError, ForwardBatch, Model
from swiftspec.engine.model.gpu.model import GpuDecoder
from swiftspec.engine.model.gpu.weights import FORMATS
from swiftspec.engine.model.kv_cache import KVCache, cache_of
from swiftspec.engine.parallel.tp_group import TPGroup
from swiftspec.errors import FieldError
from swiftspec.files.document import ModelRef
from swiftspec.models.inflation import Inflation
from swiftspec.models.spec import model_directory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}  # of a CPU


Decoder = CpuDecoder | GpuDecoder  # with the same methods; each accepts only caches that it made


class ModelRunner(Model):
    """A decoder with a cache for each of its sequences, numbered from 0.

    has_own_threads: whether forwards do without torch's threads, which would spin beside theirs after every other
    operation. tenant_bytes: as of the decoder.
    """

    def __init__(self, decoder: Decoder, caches: Sequence[KVCache]) -> None:
        self._decoder, self.caches = decoder, caches
        self.vocab_size = decoder.spec.vocab_size
        self.has_own_threads, self.tenant_bytes = decoder.has_own_threads, decoder.tenant_bytes

    @classmethod
    def load(
        cls,
        reference: ModelRef,
        *,
        max_context: int,
        tree_slots: int,
        num_sequences: int = 1,
        tenants: Sequence[str] = (),
        device: str = "cpu",
        tp_group: TPGroup | None = None,
        taps: FeatureTaps | None = None,
    ) -> Self:
        """A model with room for `max_context` tokens and `tree_slots` tree nodes per sequence, on `cpu` or `cuda:N`.

        `tenants` are fine-tunes and adapters of it, and `taps` what a head reads of it, both on CPUs only. In a TP
        group, this rank's shard of it: all ranks load, warm up and run it together. A GPU must be the current one.
        ValueError, in one sentence, if the model, its inflation, a tenant or the device cannot be used.
        """
        place = usable_device(device)
        if num_sequences < 1:
            raise ValueError(f"num_sequences is {num_sequences}; expected at least one")
        formats = DTYPES if place.type == "cpu" else FORMATS
        if reference.dtype not in formats:
            raise FieldError("dtype", repr(reference.dtype), f"expected one of {', '.join(formats)} on {place.type}")
        directory = model_directory(reference.model)
        inflation = Inflation.parse(reference.inflate) if reference.inflate else None
        capacity = max_context + tree_slots
        if place.type == "cpu":
            decoder = CpuDecoder(
                directory,
                tenants=[model_directory(tenant) for tenant in tenants],
                dtype=DTYPES[reference.dtype],
                inflation=inflation,
                tp_group=tp_group,
                taps=taps,
            )
            return cls(decoder, [decoder.new_cache(capacity) for _ in range(num_sequences)])
        if tenants:
            raise ValueError(f"tenant {tenants[0]}: tenants are served on CPUs only; the device is {place}")
        try:
            weight_format = FORMATS[reference.dtype]
            static = GpuDecoder.load(
                directory, weight_format=weight_format, device=place, inflation=inflation, tp_group=tp_group
            )
            return cls(static, [static.new_cache(capacity, tree_slots=tree_slots) for _ in range(num_sequences)])
        except torch.OutOfMemoryError:
            slots = num_sequences * capacity
            raise ValueError(f"{reference} with {slots} slots does not fit into the memory of {place}") from None

    def warm_up(self, max_rows: int) -> None:
        """Run every size once: the first forward compiles its products, allocates its buffers or is captured."""
        self._decoder.warm_up(max_rows, self.caches)

    def forward(self, batch: ForwardBatch) -> BatchResult:
        try:
            return self._decoder.forward(batch, self.caches)
        except torch.AcceleratorError as error:
            raise DeviceError(str(error)) from error

    def check(self, batch: ForwardBatch) -> None:
        self._decoder.check(batch, self.caches)

    def routes(self) -> torch.Tensor | None:
        """Experts that every layer chose for the last forward's rows, [layers, R, k]; None without, or on a GPU."""
        return self._decoder.routes() if isinstance(self._decoder, CpuDecoder) else None

    def keep(self, sequence: int, slots: Sequence[int], num_verified: int) -> None:
        cache_of(sequence, self.caches).keep(slots, num_verified)

    def reset(self, sequence: int, tenant: int = 0) -> None:
        if not 0 <= tenant <= len(self.tenant_bytes):
            raise ValueError(f"tenant is {tenant}; expected 0 to {len(self.tenant_bytes)}")
        cache = cache_of(sequence, self.caches)
        cache.reset()
        cache.tenant = tenant
