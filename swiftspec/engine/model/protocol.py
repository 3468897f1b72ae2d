"""A model as role programs use it: forwards of batches, and a cache with explicit compaction for each sequence."""

from typing import Protocol

from swiftspec.engine.model.forward_batch import BatchResult, ForwardBatch

__all__ = ["DeviceError", "Model"]


class DeviceError(RuntimeError):
    """A device has failed: nothing that it computes from now on can be trusted."""


class Model(Protocol):
    """A decoder with the caches of its sequences, which are numbered from 0, as the driver sees it.

    A ValueError names the sequence that is wrong; nothing has changed then, for any sequence.
    """

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """Compute a batch: rows are appended to their sequences' trees, chunks to the prefixes."""

    def check(self, batch: ForwardBatch) -> None:
        """ValueError, naming the sequence, if `forward` would refuse an entry of this batch."""

    def keep(self, sequence: int, slots: tuple[int, ...], num_verified: int) -> None:
        """Keep tree slots of a sequence in this order; the first `num_verified` join the prefix."""

    def reset(self, sequence: int, tenant: int = 0, /) -> None:
        """Forget every cached token of a sequence, which is this tenant's from now on; 0 is the model itself."""
