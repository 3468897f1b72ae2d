"""Advice for a server that runs: its counts, a model of it, and what changes would bring."""
