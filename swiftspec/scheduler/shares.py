"""Equal shares of a step's rows."""

from collections.abc import Sequence

__all__ = ["equal_shares"]


def equal_shares(wanted: Sequence[int], num_rows: int) -> list[int]:
    """Equal shares of `num_rows`, one at least for each; what one does not want is the others'."""
    left = max(num_rows, len(wanted))
    shares = [0] * len(wanted)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    for count, index in zip(range(len(order), 0, -1), order, strict=True):
        shares[index] = min(wanted[index], left // count)
        left -= shares[index]
    return shares
