"""Processes of an engine on several machines: hosts that keep them, and those who start hosts: Ray and torchrun."""
