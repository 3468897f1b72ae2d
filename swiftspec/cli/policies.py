"""Policies that a user names."""

from swiftspec.models.names import unknown
from swiftspec.policies import POLICIES, Layout, make_policy

__all__ = ["check_policy"]


def check_policy(policy: str, devices: int) -> str | None:
    """The policy to choose among, None for `auto`. ValueError if there is none so called, or not on so few devices."""
    if policy == "auto":
        return None
    if policy not in POLICIES:
        raise unknown("--policy", policy, ("auto", *POLICIES))
    if devices < 2 and make_policy(policy).layout is Layout.DISAGGREGATED:
        raise ValueError(
            f"--policy is {policy}, which is disaggregated: its roles need 2 devices, and --devices is {devices}"
        )
    return policy
