"""Comparison of kinds of drafts on one target: none, suffixes, draft models, parallel drafts, heads, block drafters."""
