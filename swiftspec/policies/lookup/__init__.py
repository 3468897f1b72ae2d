"""Policies that find their draft tokens in text that is known already."""
