"""Predictions compared with what was measured."""
