"""Predictions of what others published, from what they published as input."""
