"""Earlier outputs that a server keeps: apart for every tenant, and for every policy that searches them."""

from swiftspec.policies.base import Policy
from swiftspec.policies.earlier_outputs import EarlierOutputs

__all__ = ["SharedOutputs", "num_searched"]


class SharedOutputs:
    """Earlier outputs of one server; nothing is kept for policies that search none."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int], EarlierOutputs] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def known_to(self, policy: Policy, tenant: int = 0) -> EarlierOutputs | None:
        """The outputs that a tenant's request may be continued from; None if its policy searches none."""
        most = num_searched(policy)
        if not most:
            return None
        key = (tenant, most, policy.max_tree_depth)  # type: ignore[attr-defined]
        if key not in self._kept:
            self._kept[key] = EarlierOutputs(most, key[2])
        return self._kept[key]


def num_searched(policy: Policy) -> int:
    """Most earlier outputs that a policy searches: its field `earlier_outputs`; beside it, it has `max_tree_depth`."""
    most: int = getattr(policy, "earlier_outputs", 0)
    return most
