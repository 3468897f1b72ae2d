"""Policies that draft a tree on the target's devices, a new one each round."""
