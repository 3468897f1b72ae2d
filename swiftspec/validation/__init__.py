"""Comparison of predictions with measurements."""
