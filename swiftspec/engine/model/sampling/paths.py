"""Paths: names of texts, by which what is known of a row is found again after its cache was compacted."""

from collections.abc import Sequence
from hashlib import blake2b

from swiftspec.policies.effects import Row

Path = bytes  # digest of a token and all before it, so that its size does not grow with the output


class CachedPaths:
    """Paths in a cache: of its prefix, and of each tree slot."""

    def __init__(self) -> None:
        self.prefix: Path = b""
        self.tree: list[Path] = []

    def prefill(self, tokens: Sequence[int]) -> None:
        self.prefix = after(self.prefix, tokens)

    def forward(self, rows: Sequence[Row]) -> list[Path]:
        """Enter the rows of a forward; their paths."""
        first = len(self.tree)
        for row in rows:
            above = self.tree[parent_slot(row)] if row.ancestors else self.prefix
            self.tree.append(after(above, (row.token,)))
        return self.tree[first:]

    def keep(self, slots: Sequence[int], num_verified: int) -> None:
        kept = [self.tree[slot] for slot in slots]
        self.prefix = kept[num_verified - 1] if num_verified else self.prefix
        self.tree = kept[num_verified:]


def parent_slot(row: Row) -> int:
    """Slot of the row's parent: the highest ancestor, since slots ascend along a path."""
    return row.ancestors.bit_length() - 1


def after(path: Path, tokens: Sequence[int]) -> Path:
    for token in tokens:
        path = blake2b(path + token.to_bytes(8, "little"), digest_size=16).digest()
    return path
