"""Weights: read, expanded, shared, and cut for the ranks of a TP group."""
