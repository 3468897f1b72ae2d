"""Tokens from logits, and the acceptance of draft tokens at temperatures above 0."""
