"""Tensor parallelism: the ranks that compute one model together."""
