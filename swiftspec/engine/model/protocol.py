"""A model as role programs use it: forwards over rows, and a cache with explicit compaction."""

from typing import Any, Protocol

from swiftspec.policies.effects import Row

__all__ = ["Model"]


class Model(Protocol):
    """A decoder with its cache, as the driver sees it. Logits are valid until the model's next call."""

    def reset(self) -> None:
        """Forget every cached token."""

    def prefill(self, tokens: tuple[int, ...]) -> Any:
        """Put tokens into the prefix; logits after the last one, (vocab,)."""

    def forward(self, rows: tuple[Row, ...], *, fuzzy: bool = False) -> Any:
        """Append rows to the tree; logits (rows, vocab)."""

    def exit(self, rows: tuple[Row, ...]) -> Any:
        """The first half of a forward; its logits (rows, vocab)."""

    def finish(self) -> Any:
        """The other half; the forward's logits (rows, vocab)."""

    def candidates(self, logits: Any, num_candidates: int) -> tuple[list[list[int]], list[list[float]]]:
        """Most likely tokens after each row of the last forward, or half of one, and their natural log-probs."""

    def keep(self, slots: tuple[int, ...], num_verified: int) -> None:
        """Compact the cache."""
