"""Comparison of drafts for one target at several loads."""
