"""Policies that draft a chain and verify it on the same devices."""
