"""Role programs: one policy, one file, one line in `registry`. Sans-IO (see `effects`)."""

from swiftspec.policies.base import DraftKind, Layout, Policy
from swiftspec.policies.registry import POLICIES, make_policy, policy_class, policy_classes, policy_names
from swiftspec.policies.request import Request

__all__ = [
    "POLICIES",
    "DraftKind",
    "Layout",
    "Policy",
    "Request",
    "make_policy",
    "policy_class",
    "policy_classes",
    "policy_names",
]
