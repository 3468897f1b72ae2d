"""Chooses policy, tree shape and placement by simulation. Never imports torch."""
