"""Acceptance model of pairs that cannot be run, fitted to published figures. Notebooks import `tree_acceptance`."""

from swiftspec.acceptance.model import tree_acceptance

__all__ = ["tree_acceptance"]
