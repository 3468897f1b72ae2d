"""Earlier outputs that a server keeps: apart for every tenant, and for every policy that searches them."""

from swiftspec.policies.base import Policy
from swiftspec.policies.lookup.earlier_outputs import EarlierOutputs

__all__ = ["SharedOutputs"]


class SharedOutputs:
    """Earlier outputs of one server; nothing is kept for policies that search none."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int], EarlierOutputs] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def known_to(self, policy: Policy, tenant: int = 0) -> EarlierOutputs | None:
        """The outputs that a tenant's request may be continued from; None if its policy searches none."""
        if not policy.earlier_outputs:
            return None
        key = (tenant, policy.earlier_outputs, policy.max_tree_depth)
        if key not in self._kept:
            self._kept[key] = EarlierOutputs(policy.earlier_outputs, policy.max_tree_depth)
        return self._kept[key]
