"""Drafts that read a target's features: heads, and drafters of blocks of tokens."""
